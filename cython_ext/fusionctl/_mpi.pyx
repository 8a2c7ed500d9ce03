"""MPI bound at run time: one compiled file for MPICH, Open MPI and the standard ABI.

No mpi.h is needed to build.  `bind()` takes the functions from the library that mpi4py loaded, so that both always use
the same one.  Handles come from mpi4py and stay opaque; a MPI_Status is a box larger than any library's.
"""

from libc.stdint cimport uintptr_t

cdef extern from "<dlfcn.h>" nogil:
    void* dlopen(const char* path, int flags)
    void* dlsym(void* library, const char* symbol)
    int RTLD_NOW
    int RTLD_NOLOAD

cdef extern from *:
    """
    struct alignas(16) StatusBox { char bytes[64]; };
    struct MpiApi {
        int (*Iallreduce)(const void*, void*, int, uintptr_t, uintptr_t, uintptr_t, uintptr_t*);
        int (*Ibcast)(void*, int, uintptr_t, int, uintptr_t, uintptr_t*);
        int (*Isend)(const void*, int, uintptr_t, int, int, uintptr_t, uintptr_t*);
        int (*Irecv)(void*, int, uintptr_t, int, int, uintptr_t, uintptr_t*);
        int (*Iallgather)(const void*, int, uintptr_t, void*, int, uintptr_t, uintptr_t, uintptr_t*);
        int (*Iallgatherv)(const void*, int, uintptr_t, void*, const int*, const int*, uintptr_t, uintptr_t,
                           uintptr_t*);
        int (*Test)(uintptr_t*, int*, StatusBox*);
        int (*Iprobe)(int, int, uintptr_t, int*, StatusBox*);
        int (*Recv)(void*, int, uintptr_t, int, int, uintptr_t, StatusBox*);
        int (*Error_string)(int, char*, int*);
    };
    """
    cdef struct StatusBox:
        pass
    cdef struct MpiApi:
        int (*Iallreduce)(const void*, void*, int, Handle, Handle, Handle, Handle*) noexcept nogil
        int (*Ibcast)(void*, int, Handle, int, Handle, Handle*) noexcept nogil
        int (*Isend)(const void*, int, Handle, int, int, Handle, Handle*) noexcept nogil
        int (*Irecv)(void*, int, Handle, int, int, Handle, Handle*) noexcept nogil
        int (*Iallgather)(const void*, int, Handle, void*, int, Handle, Handle, Handle*) noexcept nogil
        int (*Iallgatherv)(const void*, int, Handle, void*, const int*, const int*, Handle, Handle,
                           Handle*) noexcept nogil
        int (*Test)(Handle*, int*, StatusBox*) noexcept nogil
        int (*Iprobe)(int, int, Handle, int*, StatusBox*) noexcept nogil
        int (*Recv)(void*, int, Handle, int, int, Handle, StatusBox*) noexcept nogil
        int (*Error_string)(int, char*, int*) noexcept nogil

cdef MpiApi api
cdef int any_source


def bind(bytes library, int any_source_value):
    """Take the functions from `library`, the file of the extension module mpi4py.MPI; OSError when one is missing."""
    global any_source
    any_source = any_source_value
    cdef void* handle = dlopen(library, RTLD_NOW | RTLD_NOLOAD)
    if handle == NULL:
        raise OSError(f"{library.decode()} is not loaded")
    cdef dict table = {
        b"MPI_Iallreduce": <uintptr_t>&api.Iallreduce,
        b"MPI_Ibcast": <uintptr_t>&api.Ibcast,
        b"MPI_Isend": <uintptr_t>&api.Isend,
        b"MPI_Irecv": <uintptr_t>&api.Irecv,
        b"MPI_Iallgather": <uintptr_t>&api.Iallgather,
        b"MPI_Iallgatherv": <uintptr_t>&api.Iallgatherv,
        b"MPI_Test": <uintptr_t>&api.Test,
        b"MPI_Iprobe": <uintptr_t>&api.Iprobe,
        b"MPI_Recv": <uintptr_t>&api.Recv,
        b"MPI_Error_string": <uintptr_t>&api.Error_string,
    }
    for symbol, where in table.items():
        if not _take(handle, symbol, <void**><uintptr_t>where):
            raise OSError(f"{symbol.decode()} is missing from the MPI library that mpi4py loaded")


cdef bint _take(void* handle, const char* symbol, void** where) noexcept:
    where[0] = dlsym(handle, symbol)
    return where[0] != NULL


cdef void _open(Request* request) noexcept nogil:
    request.handle = 0
    request.done = False


cdef int iallreduce(const void* send, void* recv, int count, Handle dtype, Handle op, Handle comm,
                    Request* request) noexcept nogil:
    _open(request)
    return api.Iallreduce(send, recv, count, dtype, op, comm, &request.handle)


cdef int ibcast(void* buf, int count, Handle dtype, int root, Handle comm, Request* request) noexcept nogil:
    _open(request)
    return api.Ibcast(buf, count, dtype, root, comm, &request.handle)


cdef int isend(const void* buf, int count, Handle dtype, int dest, int tag, Handle comm,
               Request* request) noexcept nogil:
    _open(request)
    return api.Isend(buf, count, dtype, dest, tag, comm, &request.handle)


cdef int irecv(void* buf, int count, Handle dtype, int source, int tag, Handle comm, Request* request) noexcept nogil:
    _open(request)
    return api.Irecv(buf, count, dtype, source, tag, comm, &request.handle)


cdef int iallgather(const void* send, int send_count, void* recv, int recv_count, Handle dtype, Handle comm,
                    Request* request) noexcept nogil:
    _open(request)
    return api.Iallgather(send, send_count, dtype, recv, recv_count, dtype, comm, &request.handle)


cdef int iallgatherv(const void* send, int send_count, void* recv, const int* counts, const int* offsets, Handle dtype,
                     Handle comm, Request* request) noexcept nogil:
    _open(request)
    return api.Iallgatherv(send, send_count, dtype, recv, counts, offsets, dtype, comm, &request.handle)


cdef int test(Request* request) noexcept nogil:
    cdef StatusBox status
    cdef int flag = 0
    cdef int code = 0
    if not request.done:
        code = api.Test(&request.handle, &flag, &status)
        request.done = flag != 0
    return code


cdef int drain(int tag, Handle byte, Handle comm, bint* flag) noexcept nogil:
    cdef StatusBox status
    cdef char nothing
    cdef int found = 0
    cdef int code = api.Iprobe(any_source, tag, comm, &found, &status)
    flag[0] = found != 0
    if code == 0 and found:
        code = api.Recv(&nothing, 0, byte, any_source, tag, comm, &status)
    return code


cdef void error_text(int code, char* text) noexcept nogil:
    cdef int length = 0
    text[0] = 0
    api.Error_string(code, text, &length)
