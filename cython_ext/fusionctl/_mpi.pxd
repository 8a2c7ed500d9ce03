# The MPI calls that the engine makes, taken at run time from the library that mpi4py loaded.
from libc.stdint cimport int64_t, uintptr_t

# Any MPI handle by value.  MPICH's are ints, Open MPI's and the standard ABI's are pointers: on a 64-bit little-endian
# machine both travel in one register and fit one zeroed word, so one binary serves every MPI.
ctypedef uintptr_t Handle

cdef struct Request:
    Handle handle
    bint done

# All return MPI's error code, 0 on success; `request` is overwritten.
cdef int iallreduce(const void* send, void* recv, int count, Handle dtype, Handle op, Handle comm,
                    Request* request) noexcept nogil
cdef int ibcast(void* buf, int count, Handle dtype, int root, Handle comm, Request* request) noexcept nogil
cdef int isend(const void* buf, int count, Handle dtype, int dest, int tag, Handle comm,
               Request* request) noexcept nogil
cdef int irecv(void* buf, int count, Handle dtype, int source, int tag, Handle comm, Request* request) noexcept nogil
cdef int iallgather(const void* send, int send_count, void* recv, int recv_count, Handle dtype, Handle comm,
                    Request* request) noexcept nogil
cdef int iallgatherv(const void* send, int send_count, void* recv, const int* counts, const int* offsets, Handle dtype,
                     Handle comm, Request* request) noexcept nogil

# Sets request.done once the operation is complete; safe to call again afterwards.
cdef int test(Request* request) noexcept nogil

# 1 in `flag` when a message with this tag waits, from any rank; it is then received and dropped.
cdef int drain(int tag, Handle byte, Handle comm, bint* flag) noexcept nogil

cdef void error_text(int code, char* text) noexcept nogil
