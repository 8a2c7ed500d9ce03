# Declarations of tf_c_api.h (C++): TensorFlow's C API, bound at run time.
from libc.stdint cimport int32_t, int64_t

cdef extern from "tf_c_api.h" nogil:
    struct TF_Status
    struct TF_Tensor
    struct TF_OpDefinitionBuilder
    struct TF_ShapeHandle
    struct TF_ShapeInferenceContext
    struct TF_KernelBuilder
    struct TF_OpKernelConstruction
    struct TF_OpKernelContext
    struct TF_AsyncOpKernelDoneCallback

ctypedef void* (*create_fn)(TF_OpKernelConstruction*) noexcept nogil
ctypedef void (*compute_fn)(void*, TF_OpKernelContext*) noexcept nogil
ctypedef void (*compute_async_fn)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*) noexcept nogil
ctypedef void (*delete_fn)(void*) noexcept nogil
ctypedef void (*shape_fn)(TF_ShapeInferenceContext*, TF_Status*) noexcept nogil

cdef extern from "tf_c_api.h" namespace "fusionctl::tf" nogil:
    cdef cppclass Api:
        TF_Status* NewStatus()
        void DeleteStatus(TF_Status*)
        void SetStatus(TF_Status*, int, const char*)
        int GetCode(const TF_Status*)
        const char* Message(const TF_Status*)
        TF_Tensor* AllocateTensor(int, const int64_t*, int, size_t)
        void DeleteTensor(TF_Tensor*)
        int TensorType(const TF_Tensor*)
        int NumDims(const TF_Tensor*)
        int64_t Dim(const TF_Tensor*, int)
        void* TensorData(const TF_Tensor*)
        TF_OpDefinitionBuilder* NewOpDefinitionBuilder(const char*)
        void OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder*, const char*)
        void OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder*, const char*)
        void OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder*, const char*)
        void OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder*, bint)
        void OpDefinitionBuilderSetShapeInferenceFunction(TF_OpDefinitionBuilder*, shape_fn)
        void RegisterOpDefinition(TF_OpDefinitionBuilder*, TF_Status*)
        int64_t ShapeInferenceContextNumInputs(TF_ShapeInferenceContext*)
        TF_ShapeHandle* NewShapeHandle()
        void DeleteShapeHandle(TF_ShapeHandle*)
        TF_ShapeHandle* ShapeInferenceContextScalar(TF_ShapeInferenceContext*)
        void ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext*, TF_Status*)
        void ShapeInferenceContextGetInput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*)
        void ShapeInferenceContextSetOutput(TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*)
        TF_KernelBuilder* NewKernelBuilder(const char*, const char*, create_fn, compute_fn, delete_fn)
        TF_KernelBuilder* NewAsyncKernelBuilder(const char*, const char*, create_fn, compute_async_fn, delete_fn)
        void RegisterKernelBuilder(const char*, TF_KernelBuilder*, TF_Status*)
        void OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction*, const char*, int32_t*, TF_Status*)
        void OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*)
        void OpKernelConstruction_GetAttrInt32List(TF_OpKernelConstruction*, const char*, int32_t*, int, TF_Status*)
        void OpKernelConstruction_Failure(TF_OpKernelConstruction*, TF_Status*)
        void OpKernelContext_Failure(TF_OpKernelContext*, TF_Status*)
        int NumInputs(TF_OpKernelContext*)
        void GetInput(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*)
        void SetOutput(TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*)
        TF_Tensor* AllocateOutput(TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*)
        TF_Tensor* ForwardInputOrAllocateOutput(TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*,
                                                TF_Status*)
        void RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback*)

    cdef cppclass Pending:
        Pending(TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*)
        TF_OpKernelContext* context

    const char* bind(Api&)
    bint is_done_function(const TF_AsyncOpKernelDoneCallback*)
    void finish(Pending*)
    void finish_later(Pending*)
