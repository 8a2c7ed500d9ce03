"""Reduce and scale for each dtype; Python reaches them only to test and to measure them."""

from libc.stdlib cimport free, malloc

from fusionctl._dtypes cimport itemsize

cdef enum:
    AVERAGE = 0
    SUM = 1
    FLOAT64 = 3

cdef extern from "kernels.h" nogil:
    const bint c_has_avx2 "fusionctl::has_avx2"
    void c_scale "fusionctl::scale"(int, const void*, void*, size_t, double)
    void c_reduce "fusionctl::reduce"(int, int, void*, const void**, int, size_t, double)
    void c_adasum "fusionctl::adasum"(int, void*, const void*, const void*, size_t)
    void c_neutral "fusionctl::neutral"(int, int, void*, size_t)
    void portable_adasum "fusionctl::portable::adasum"(int, void*, const void*, const void*, size_t)
    void portable_scale "fusionctl::portable::scale"(int, const void*, void*, size_t, double)
    void portable_reduce "fusionctl::portable::reduce"(int, int, void*, const void**, int, size_t, double)


cdef void scale(int dtype, const void* src, void* dst, size_t n, double factor) noexcept nogil:
    c_scale(dtype, src, dst, n, factor)


cdef void reduce(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale
) noexcept nogil:
    c_reduce(dtype, op, dst, srcs, k, n, scale)


cdef void combine(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double factor, int divisor
) noexcept nogil:
    if dtype <= FLOAT64:
        c_reduce(dtype, SUM if op == AVERAGE else op, dst, srcs, k, n, factor)
    else:
        c_reduce(dtype, op, dst, srcs, k, n, divisor if op == AVERAGE else 1.0)


cdef void adasum(int dtype, void* dst, const void* a, const void* b, size_t n) noexcept nogil:
    c_adasum(dtype, dst, a, b, n)


cdef void neutral(int dtype, int op, void* dst, size_t n) noexcept nogil:
    c_neutral(dtype, op, dst, n)


INSTRUCTION_SETS = ("portable", "avx2") if c_has_avx2 else ("portable",)


cdef int check_size(const unsigned char[::1] buffer, size_t n, size_t width) except -1:
    if <size_t>buffer.shape[0] != n * width:
        raise ValueError(f"a buffer has {buffer.shape[0]} bytes where {n} elements of {width} bytes were expected")
    return 0


def scale_bytes(
    int dtype, const unsigned char[::1] src, unsigned char[::1] dst, double factor, bint portable=False
):
    """`scale` the elements that the bytes of `src` hold into those of `dst`."""
    cdef size_t n = src.shape[0] // itemsize(dtype)
    check_size(src, n, itemsize(dtype))
    check_size(dst, n, itemsize(dtype))
    (portable_scale if portable else c_scale)(dtype, &src[0], &dst[0], n, factor)


def reduce_bytes(int dtype, int op, unsigned char[::1] dst, list srcs, double scale=1.0, bint portable=False):
    """`reduce` the elements that the bytes of the `srcs` hold into those of `dst`."""
    cdef size_t n = dst.shape[0] // itemsize(dtype)
    cdef int k = len(srcs)
    cdef const unsigned char[::1] view
    cdef const void** pointers = <const void**>malloc(max(k, 1) * sizeof(void*))
    try:
        for j, src in enumerate(srcs):
            view = src
            check_size(view, n, itemsize(dtype))
            pointers[<int>j] = &view[0]
        (portable_reduce if portable else c_reduce)(dtype, op, &dst[0], pointers, k, n, scale)
    finally:
        free(pointers)


def adasum_bytes(
    int dtype, unsigned char[::1] dst, const unsigned char[::1] a, const unsigned char[::1] b, bint portable=False
):
    """`adasum` of the elements that the bytes of `a` and `b` hold into those of `dst`."""
    cdef size_t n = dst.shape[0] // itemsize(dtype)
    check_size(a, n, itemsize(dtype))
    check_size(b, n, itemsize(dtype))
    (portable_adasum if portable else c_adasum)(dtype, &dst[0], &a[0], &b[0], n)


def neutral_bytes(int dtype, int op, unsigned char[::1] dst):
    """Fill the bytes of `dst` with elements that change no result of `op`."""
    c_neutral(dtype, op, &dst[0], dst.shape[0] // itemsize(dtype))
