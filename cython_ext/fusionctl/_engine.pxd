# What other compiled modules may ask of the engine; all of it is thread-safe, non-blocking and free of the GIL.
from libc.stdint cimport int64_t

# Status codes of a submission or a completed slot.
cdef enum Status:
    OK = 0
    DUPLICATE = 1
    MISMATCH = 2
    PEER = 3
    MPI_FAILED = 4
    NOT_INITIALISED = 5
    USAGE = 6

ctypedef void (*wait_done)(void* arg, int status, const char* message) noexcept nogil
ctypedef void (*release_fn)(void* handle) noexcept nogil

# Hand a tensor to the engine.  `dtype` indexes request.DTYPES; `src` is read until the tensor is packed, `dst` (which
# may be `src`) written once it is reduced; then each owner that is not NULL is given to the release function.
# A status other than OK keeps nothing: the caller still owns both.
cdef int engine_submit(int slot, int dtype, int ndim, const int64_t* shape, const void* src, void* dst,
                       void* owner_src, void* owner_dst) noexcept nogil

# Message of the calling thread's last failed submission.
cdef const char* engine_error() noexcept nogil

# Call back exactly once when all n slots are done or failed: inline when they already are, else on the engine thread.
# The message is valid during the call only.
cdef int engine_wait(const int* slots, int n, wait_done callback, void* arg) noexcept nogil

cdef void engine_set_release(release_fn fn) noexcept nogil
