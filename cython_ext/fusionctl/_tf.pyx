"""TensorFlow's kernels: hand a tensor to the engine, and wait for a set of them without a thread.

The ops are registered by a static constructor when `tf.load_op_library` loads this file, so TensorFlow must be loaded
before; the import of this module, which is the same file, then connects them to the engine.  All kernels run on the
CPU: on a machine with GPUs TensorFlow moves their inputs to host memory.

What each op tells TensorFlow's graphs about itself:

- FusionctlSubmit is not stateful, since tf.function would chain such ops in the order of the trace.  What keeps it from
  being folded into a constant or merged with another is its input `tick`, the output of FusionctlTick.
- FusionctlTick is stateful and takes a resource that it seems to write.  There is one in each graph, so nothing within
  a graph is chained, but calls of functions that submit run in the order of the programme, and so do iterations.
- FusionctlWait is stateful: it runs, and with it its submissions, although nobody may use its outputs.
- FusionctlSubmitRows and FusionctlCollect are the same two for results whose size the engine learns from the other
  ranks: the submission's output is its input, and stands for the result in the graph.
- FusionctlDeliver is an identity of many tensors that TensorFlow does not optimise away.  What follows an asynchronous
  op is started by the engine's thread, one task for each consumer; what follows this one, by the thread that runs it.
"""

from libc.stdint cimport int32_t, int64_t, intptr_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from fusionctl._board cimport (
    Allocator,
    DUPLICATE,
    MISMATCH,
    NOT_INITIALISED,
    PEER,
    Results,
    USAGE,
    engine_error,
    engine_set_release,
    engine_submit,
    engine_submit_rows,
    engine_wait,
)
from fusionctl._dtypes cimport tensor_bytes

from fusionctl._tf_c_api cimport (
    Api,
    Pending,
    TF_AsyncOpKernelDoneCallback,
    TF_KernelBuilder,
    TF_OpDefinitionBuilder,
    TF_OpKernelConstruction,
    TF_OpKernelContext,
    TF_ShapeHandle,
    TF_ShapeInferenceContext,
    TF_Status,
    TF_Tensor,
    bind,
    finish,
    finish_later,
    is_done_function,
    shape_fn,
)

cdef extern from *:
    """
    static int fusionctl_register_ops();

    static fusionctl::tf::Api api;
    static std::string the_problem;
    static const bool registered = fusionctl_register_ops();

    // Index in request.DTYPES of each TF_DataType: 1 float, 2 double, 3 int32, 4 uint8, 5 int16, 6 int8, 9 int64,
    // 10 bool, 14 bfloat16, 17 uint16, 19 half.
    static const int dtype_codes[] = {-1, 2, 3, 4, 7, 8, 6, -1, -1, 5, 10, -1, -1, -1, 1, -1, -1, 9, -1, 0};
    static const char* const element_types =
        "T: {half, bfloat16, float, double, int32, int64, int8, uint8, int16, uint16, bool}";
    static const int tf_dtypes[] = {19, 14, 1, 2, 3, 9, 6, 4, 5, 17, 10};

    static fusionctl::Allocator* tensors = new fusionctl::Allocator{nullptr, nullptr};
    """
    Allocator* tensors
    const char* element_types
    const int* tf_dtypes
    Api api
    string the_problem
    const int* dtype_codes

# Values of TF_Code.
cdef enum:
    TF_OK = 0
    TF_INVALID_ARGUMENT = 3
    TF_FAILED_PRECONDITION = 9
    TF_ABORTED = 10
    TF_UNIMPLEMENTED = 12
    TF_INTERNAL = 13

cdef enum:
    TF_INT64 = 9  # of TF_DataType

ctypedef TF_OpKernelConstruction Construction
ctypedef TF_OpKernelContext Context
ctypedef TF_AsyncOpKernelDoneCallback DoneCallback


# -- FusionctlTick: a scalar that TensorFlow cannot know beforehand ----------------------------------------------------

cdef void tick(void* kernel, Context* context) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    output_zero(context, status)
    report(context, status)


cdef void output_zero(Context* context, TF_Status* status) noexcept nogil:
    cdef TF_Tensor* y = api.AllocateOutput(context, 0, TF_INT64, NULL, 0, sizeof(int64_t), status)
    if api.GetCode(status) == TF_OK:
        (<int64_t*>api.TensorData(y))[0] = 0
        api.DeleteTensor(y)


cdef void* create_nothing(Construction* construction) noexcept nogil:
    return NULL


cdef void delete_nothing(void* kernel) noexcept nogil:
    pass


# -- FusionctlSubmit: the kernel is its slot ---------------------------------------------------------------------------

cdef void* create_submit(Construction* construction) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    cdef int32_t slot = -1
    api.OpKernelConstruction_GetAttrInt32(construction, b"slot", &slot, status)
    report_construction(construction, status)
    return <void*><intptr_t>slot


cdef void submit(void* kernel, Context* context) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    submit_input(<int><intptr_t>kernel, context, status)
    report(context, status)


cdef void submit_input(int slot, Context* context, TF_Status* status) noexcept nogil:
    cdef TF_Tensor* x = NULL
    cdef TF_Tensor* y
    cdef vector[int64_t] shape
    cdef int first = 0, forwarded = -1, dtype, code
    api.GetInput(context, 0, &x, status)
    if api.GetCode(status) != TF_OK:
        return
    dtype = dtype_codes[api.TensorType(x)]
    shape = shape_of(x)
    api.DeleteTensor(x)  # with a second reference its memory would not be forwarded
    x = NULL
    y = api.ForwardInputOrAllocateOutput(context, &first, 1, 0, shape.data(), <int>shape.size(), &forwarded, status)
    if api.GetCode(status) == TF_OK and forwarded != 0:
        api.GetInput(context, 0, &x, status)
    if api.GetCode(status) == TF_OK:
        code = engine_submit(slot, dtype, <int>shape.size(), shape.data(), api.TensorData(y if x == NULL else x),
                             api.TensorData(y), x, y)
        if code == 0:
            return
        api.SetStatus(status, tf_code(code), engine_error())
    release(x)
    release(y)


cdef vector[int64_t] shape_of(TF_Tensor* tensor) noexcept nogil:
    cdef vector[int64_t] shape
    for i in range(api.NumDims(tensor)):
        shape.push_back(api.Dim(tensor, i))
    return shape


cdef void release(void* tensor) noexcept nogil:
    if tensor != NULL:
        api.DeleteTensor(<TF_Tensor*>tensor)


# -- FusionctlWait: the kernel is the vector of its slots --------------------------------------------------------------

cdef void* create_wait(Construction* construction) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    cdef int32_t n = 0, unused = 0
    cdef vector[int]* slots = new vector[int]()
    api.OpKernelConstruction_GetAttrSize(construction, b"slots", &n, &unused, status)
    if api.GetCode(status) == TF_OK:
        slots.resize(n)
        api.OpKernelConstruction_GetAttrInt32List(construction, b"slots", <int32_t*>slots.data(), n, status)
    report_construction(construction, status)
    return slots


cdef void delete_wait(void* kernel) noexcept nogil:
    cdef vector[int]* slots = <vector[int]*>kernel
    del slots


cdef void wait(void* kernel, Context* context, DoneCallback* done) noexcept nogil:
    cdef vector[int]* slots = <vector[int]*>kernel
    cdef TF_Status* status = api.NewStatus()
    for i in range(<int>slots.size()):
        forward(context, i, status)
    if api.GetCode(status) != TF_OK:
        report(context, status)
        api.RunAsyncOpKernelDoneCallback(done)
        return
    api.DeleteStatus(status)
    # The step may end, and take kernel and context with it, before this call returns.
    engine_wait(slots.data(), <int>slots.size(), finish_wait, new Pending(context, done))


# The output is the input's memory: whoever may read it runs after the callback.
cdef void forward(Context* context, int i, TF_Status* status) noexcept nogil:
    cdef TF_Tensor* x = NULL
    if api.GetCode(status) == TF_OK:
        api.GetInput(context, i, &x, status)
    if api.GetCode(status) == TF_OK:
        api.SetOutput(context, i, x, status)
    release(x)


cdef void finish_wait(void* arg, int code, const char* message, Results& results) noexcept nogil:
    cdef Pending* pending = <Pending*>arg
    cdef TF_Status* status
    if code != 0:
        status = api.NewStatus()
        api.SetStatus(status, tf_code(code), message)
        report(pending.context, status)
    finish(pending)


# -- FusionctlSubmitRows: the kernel is its slot; the output is the input ----------------------------------------------

cdef void submit_rows(void* kernel, Context* context) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    submit_row_input(<int><intptr_t>kernel, context, status)
    report(context, status)


cdef void submit_row_input(int slot, Context* context, TF_Status* status) noexcept nogil:
    cdef TF_Tensor* x = NULL
    cdef TF_Tensor* splits = NULL
    cdef vector[int64_t] shape, rows
    cdef int code
    api.GetInput(context, 0, &x, status)
    if api.GetCode(status) == TF_OK:
        api.GetInput(context, 1, &splits, status)
    if api.GetCode(status) == TF_OK:
        api.SetOutput(context, 0, x, status)
    if api.GetCode(status) == TF_OK:
        shape = shape_of(x)
        rows.assign(<int64_t*>api.TensorData(splits), <int64_t*>api.TensorData(splits) + api.Dim(splits, 0))
        code = engine_submit_rows(slot, dtype_codes[api.TensorType(x)], <int>shape.size(), shape.data(),
                                  api.TensorData(x), x, tensors, rows)
        if code == 0:
            x = NULL
        else:
            api.SetStatus(status, tf_code(code), engine_error())
    release(x)
    release(splits)


cdef void* allocate(int dtype, int ndim, const int64_t* shape, void** data) noexcept nogil:
    cdef TF_Tensor* tensor = api.AllocateTensor(tf_dtypes[dtype], shape, ndim, tensor_bytes(dtype, ndim, shape))
    data[0] = NULL if tensor == NULL else api.TensorData(tensor)
    return tensor


# -- FusionctlCollect: waits like FusionctlWait, for results that the engine has allocated -----------------------------

cdef void collect(void* kernel, Context* context, DoneCallback* done) noexcept nogil:
    cdef vector[int]* slots = <vector[int]*>kernel
    engine_wait(slots.data(), <int>slots.size(), finish_collect, new Pending(context, done))


cdef void finish_collect(void* arg, int code, const char* message, Results& results) noexcept nogil:
    cdef Pending* pending = <Pending*>arg
    cdef TF_Status* status = api.NewStatus()
    if code != 0:
        api.SetStatus(status, tf_code(code), message)
    else:
        output_results(pending.context, results, status)
    report(pending.context, status)
    finish(pending)


cdef void output_results(Context* context, Results& results, TF_Status* status) noexcept nogil:
    cdef int64_t[2] shape
    cdef int n = <int>results.size()
    cdef int i, r
    cdef TF_Tensor* rows
    shape[0] = n
    shape[1] = <int64_t>results[0].rows.size()
    for i in range(n):
        if api.GetCode(status) == TF_OK:
            api.SetOutput(context, i, <TF_Tensor*>results[i].handle, status)
    if api.GetCode(status) != TF_OK:
        return
    rows = api.AllocateOutput(context, n, TF_INT64, shape, 2, 8 * shape[0] * shape[1], status)
    if api.GetCode(status) == TF_OK:
        for i in range(n):
            for r in range(<int>shape[1]):
                (<int64_t*>api.TensorData(rows))[i * shape[1] + r] = results[i].rows[r]
        api.DeleteTensor(rows)


# -- FusionctlDeliver: the wait's outputs, many at once ----------------------------------------------------------------

cdef void deliver(void* kernel, Context* context) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    for i in range(api.NumInputs(context)):
        forward(context, i, status)
    report(context, status)


# -- FusionctlProbe: completes like FusionctlWait, from another thread after the kernel has returned -------------------

cdef void probe(void* kernel, Context* context, DoneCallback* done) noexcept nogil:
    cdef TF_Status* status = api.NewStatus()
    cdef bint usable = is_done_function(done)
    output_zero(context, status)
    if not usable:
        api.SetStatus(status, TF_UNIMPLEMENTED, b"asynchronous kernels are not completed by a std::function")
    report(context, status)
    if usable:
        finish_later(new Pending(context, done))
    else:
        api.RunAsyncOpKernelDoneCallback(done)


# -- what the kernels share --------------------------------------------------------------------------------------------

cdef void report(Context* context, TF_Status* status) noexcept nogil:
    if api.GetCode(status) != TF_OK:
        api.OpKernelContext_Failure(context, status)
    api.DeleteStatus(status)


cdef void report_construction(Construction* construction, TF_Status* status) noexcept nogil:
    if api.GetCode(status) != TF_OK:
        api.OpKernelConstruction_Failure(construction, status)
    api.DeleteStatus(status)


cdef int tf_code(int code) noexcept nogil:
    if code == DUPLICATE or code == USAGE:
        return TF_INVALID_ARGUMENT
    if code == MISMATCH or code == NOT_INITIALISED:
        return TF_FAILED_PRECONDITION
    return TF_ABORTED if code == PEER else TF_INTERNAL


# -- registration ------------------------------------------------------------------------------------------------------

cdef bint register_ops "fusionctl_register_ops"() noexcept nogil:
    cdef const char* missing = bind(api)
    cdef TF_Status* status
    if missing != NULL:
        the_problem.assign(missing)
        return False
    status = api.NewStatus()
    define_ops(status)
    add_kernels(status)
    if api.GetCode(status) != TF_OK:
        the_problem.assign(api.Message(status))
    api.DeleteStatus(status)
    return the_problem.empty()


cdef void define_ops(TF_Status* status) noexcept nogil:
    cdef TF_OpDefinitionBuilder* op = api.NewOpDefinitionBuilder(b"FusionctlTick")
    api.OpDefinitionBuilderSetIsStateful(op, True)
    define_op(op, NULL, b"order: resource", NULL, b"tick: int64", shape_of_scalar, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlProbe")
    api.OpDefinitionBuilderSetIsStateful(op, True)
    define_op(op, NULL, NULL, NULL, b"done: int64", shape_of_scalar, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlSubmit")
    api.OpDefinitionBuilderAddAttr(op, b"slot: int")
    define_op(op, element_types, b"x: T", b"tick: int64", b"y: T", shape_of_first, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlWait")
    api.OpDefinitionBuilderSetIsStateful(op, True)
    api.OpDefinitionBuilderAddAttr(op, b"slots: list(int) >= 1")
    define_op(op, b"T: list(type) >= 1", b"xs: T", NULL, b"ys: T", shapes_of_inputs, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlSubmitRows")
    api.OpDefinitionBuilderAddAttr(op, b"slot: int")
    api.OpDefinitionBuilderAddInput(op, b"x: T")
    api.OpDefinitionBuilderAddInput(op, b"splits: int64")
    define_op(op, element_types, NULL, b"tick: int64", b"y: T", shape_of_first, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlCollect")
    api.OpDefinitionBuilderSetIsStateful(op, True)
    api.OpDefinitionBuilderAddAttr(op, b"slots: list(int) >= 1")
    api.OpDefinitionBuilderAddAttr(op, b"T: list(type) >= 1")
    api.OpDefinitionBuilderAddInput(op, b"xs: T")
    api.OpDefinitionBuilderAddOutput(op, b"ys: T")
    define_op(op, NULL, NULL, NULL, b"rows: int64", shapes_unknown, status)
    op = api.NewOpDefinitionBuilder(b"FusionctlDeliver")
    define_op(op, b"T: list(type) >= 1", b"xs: T", NULL, b"ys: T", shapes_of_inputs, status)


cdef void define_op(
    TF_OpDefinitionBuilder* op, const char* types, const char* x, const char* tick, const char* y, shape_fn shape,
    TF_Status* status
) noexcept nogil:
    if types != NULL:
        api.OpDefinitionBuilderAddAttr(op, types)
    if x != NULL:
        api.OpDefinitionBuilderAddInput(op, x)
    if tick != NULL:
        api.OpDefinitionBuilderAddInput(op, tick)
    api.OpDefinitionBuilderAddOutput(op, y)
    api.OpDefinitionBuilderSetShapeInferenceFunction(op, shape)
    if api.GetCode(status) == TF_OK:
        api.RegisterOpDefinition(op, status)


cdef void add_kernels(TF_Status* status) noexcept nogil:
    add_kernel(
        b"FusionctlTick", api.NewKernelBuilder(b"FusionctlTick", b"CPU", create_nothing, tick, delete_nothing), status
    )
    add_kernel(
        b"FusionctlProbe",
        api.NewAsyncKernelBuilder(b"FusionctlProbe", b"CPU", create_nothing, probe, delete_nothing),
        status,
    )
    add_kernel(
        b"FusionctlSubmit",
        api.NewKernelBuilder(b"FusionctlSubmit", b"CPU", create_submit, submit, delete_nothing),
        status,
    )
    add_kernel(
        b"FusionctlSubmitRows",
        api.NewKernelBuilder(b"FusionctlSubmitRows", b"CPU", create_submit, submit_rows, delete_nothing),
        status,
    )
    add_kernel(
        b"FusionctlCollect",
        api.NewAsyncKernelBuilder(b"FusionctlCollect", b"CPU", create_wait, collect, delete_wait),
        status,
    )
    add_kernel(
        b"FusionctlDeliver",
        api.NewKernelBuilder(b"FusionctlDeliver", b"CPU", create_nothing, deliver, delete_nothing),
        status,
    )
    add_kernel(
        b"FusionctlWait", api.NewAsyncKernelBuilder(b"FusionctlWait", b"CPU", create_wait, wait, delete_wait), status
    )


cdef void add_kernel(const char* name, TF_KernelBuilder* builder, TF_Status* status) noexcept nogil:
    if api.GetCode(status) == TF_OK:
        api.RegisterKernelBuilder(name, builder, status)


cdef void shape_of_scalar(TF_ShapeInferenceContext* context, TF_Status* status) noexcept nogil:
    cdef TF_ShapeHandle* shape = api.ShapeInferenceContextScalar(context)
    api.ShapeInferenceContextSetOutput(context, 0, shape, status)
    api.DeleteShapeHandle(shape)


cdef void shapes_unknown(TF_ShapeInferenceContext* context, TF_Status* status) noexcept nogil:
    api.ShapeInferenceContextSetUnknownShape(context, status)


cdef void shape_of_first(TF_ShapeInferenceContext* context, TF_Status* status) noexcept nogil:
    copy_shape(context, 0, status)


cdef void shapes_of_inputs(TF_ShapeInferenceContext* context, TF_Status* status) noexcept nogil:
    for i in range(<int>api.ShapeInferenceContextNumInputs(context)):
        if api.GetCode(status) == TF_OK:
            copy_shape(context, i, status)


cdef void copy_shape(TF_ShapeInferenceContext* context, int i, TF_Status* status) noexcept nogil:
    cdef TF_ShapeHandle* shape = api.NewShapeHandle()
    api.ShapeInferenceContextGetInput(context, i, shape, status)
    if api.GetCode(status) == TF_OK:
        api.ShapeInferenceContextSetOutput(context, i, shape, status)
    api.DeleteShapeHandle(shape)


def problem() -> str:
    """Why the ops could not be registered with TensorFlow; empty when they are."""
    return the_problem.decode()


tensors.allocate = allocate
tensors.release = release
engine_set_release(release)
