# Declarations of board.h, waits.h and trace.h (C++); their laws and comments are there.
from libc.stdint cimport int32_t, int64_t
from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

ctypedef void (*release_fn)(void* handle) noexcept nogil
ctypedef void* (*allocate_fn)(int dtype, int ndim, const int64_t* shape, void** data) noexcept nogil

cdef extern from "board.h" namespace "fusionctl" nogil:
    int64_t now_ns()

    cdef cppclass Allocator:
        allocate_fn allocate
        release_fn release

    cdef cppclass Result:
        const Allocator* allocator
        void* handle
        void* data
        int dtype
        vector[int64_t] shape
        vector[int64_t] rows
        void discard()

    ctypedef vector[Result] Results
    ctypedef void (*wait_done "fusionctl::WaitDone")(void* arg, int status, const char* message,
                                                     Results& results) noexcept

    cdef cppclass Slot:
        string name
        int group
        int dtype
        vector[int64_t] shape
        size_t count
        const void* src
        void* dst
        int64_t rows
        vector[int64_t] splits
        const Allocator* allocator
        Result result
        int64_t submitted_ns

    cdef cppclass Board:
        int submit(int id, int dtype, int ndim, const int64_t* shape, const void* src, void* dst, void* owner_src,
                   void* owner_dst)
        int submit(int id, int dtype, int ndim, const int64_t* shape, const void* src, void* dst, void* owner_src,
                   void* owner_dst, const Allocator* allocator, const vector[int64_t]& splits)
        int wait(const int* ids, int n, wait_done callback, void* arg)
        void ring()
        int add_group(int lane, bool held)
        int add_slot(int group, const string& name, int dtype, const vector[int64_t]& shape, int peers)
        void restate(int id, int dtype, const vector[int64_t]& shape)
        void hold(int group)
        void open(int lane)
        void close(int lane, int status, const string& message)
        void take(int lane, vector[int]& stale, vector[int]& submitted, vector[int]& restated)
        void take_stale(int lane, vector[int]& stale)
        bool take_bell()
        void doze(int64_t ns)
        Slot& slot(int id)
        bool busy(int id)
        void bunch(const vector[int]& ids)
        void unbunch(const vector[int]& ids)
        void begin(const vector[int]& ids)
        void complete(const vector[int]& ids, int status, const string& message)
        vector[int] fail_group(int id, int status, const string& message)
        vector[int] pending(int lane)
        void set_release(release_fn release)
        @staticmethod
        const char* error()

cdef extern from "waits.h" namespace "fusionctl" nogil:
    cdef cppclass Latch:
        @staticmethod
        void open(void* self, int status, const char* message, Results& results) noexcept
        bool wait(int64_t ns)
        int status
        string message
        Results results

    cdef struct Outcome:
        int64_t token
        int status
        string message
        Results results

    cdef cppclass Inbox:
        cppclass Entry:
            pass
        @staticmethod
        void put(void* arg, int status, const char* message, Results& results) noexcept
        Entry* entry(int64_t token)
        bool take(Outcome& out, int64_t ns)

cdef extern from "trace.h" namespace "fusionctl" nogil:
    cdef struct Span:
        int32_t slot
        int32_t phase
        int64_t start
        int64_t end
        int64_t nbytes
        int64_t bucket

    cdef cppclass Trace:
        bool on
        void add(int slot, int phase, int64_t start, int64_t end, int64_t nbytes, int64_t bucket)
        void take(vector[Span]& out)

# Status codes of a submission or a completed slot.
cdef enum Status:
    OK = 0
    DUPLICATE = 1
    MISMATCH = 2
    PEER = 3
    MPI_FAILED = 4
    NOT_INITIALISED = 5
    USAGE = 6

cdef Board* get_board() noexcept nogil
cdef Trace* get_trace() noexcept nogil

# Hand a tensor to the engine.  `dtype` indexes request.DTYPES; `src` is read until the tensor is packed, `dst` (which
# may be `src`) written once it is reduced; then each owner that is not NULL is given to the release function.
# A status other than OK keeps nothing: the caller still owns both.
cdef int engine_submit(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* dst,
                       void* owner_src, void* owner_dst) noexcept nogil

# The same for a tensor whose result the engine allocates: `allocator` lives for ever, `splits` are the rows for each
# rank, empty for an equal share and for what is not an all-to-all.
cdef int engine_submit_rows(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* owner,
                            const Allocator* allocator, const vector[int64_t]& splits) noexcept nogil

# Message of the calling thread's last failed submission.
cdef const char* engine_error() noexcept nogil

# Call back exactly once when all n slots are done or failed: inline when they already are, else on the engine thread.
# The message is valid during the call only, and so are the results whose handles the callback does not take.
cdef int engine_wait(const int* slots, int n, wait_done callback, void* arg) noexcept nogil

cdef void engine_set_release(release_fn fn) noexcept nogil
