"""Reduce, scale, pack and unpack for each dtype; Python reaches them only to test and to measure them."""

from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc

cdef extern from "kernels.h" nogil:
    struct Float16Cell "fusionctl::Cell<fusionctl::float16>":
        pass
    const bint c_has_f16c "fusionctl::has_f16c"
    size_t itemsize "fusionctl::itemsize"(int)
    void c_pack "fusionctl::pack"(int, int, const void*, void*, size_t, double)
    void c_unpack "fusionctl::unpack"(int, int, const void*, void*, size_t, double, int64_t)
    void c_reduce "fusionctl::reduce"(int, int, void*, const void**, int, size_t, double)
    void c_widen_portable "fusionctl::widen_portable"(float*, const Float16Cell*, size_t)
    void c_narrow_portable "fusionctl::narrow_portable"(Float16Cell*, const float*, size_t)


cdef void pack(int dtype, int wire, const void* src, void* dst, size_t n, double scale) noexcept nogil:
    c_pack(dtype, wire, src, dst, n, scale)


cdef void unpack(
    int dtype, int wire, const void* src, void* dst, size_t n, double scale, int64_t divisor
) noexcept nogil:
    c_unpack(dtype, wire, src, dst, n, scale, divisor)


cdef void reduce(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale
) noexcept nogil:
    c_reduce(dtype, op, dst, srcs, k, n, scale)


has_f16c = bool(c_has_f16c)


cdef int check_size(const unsigned char[::1] buffer, size_t n, size_t width) except -1:
    if <size_t>buffer.shape[0] != n * width:
        raise ValueError(f"a buffer has {buffer.shape[0]} bytes where {n} elements of {width} bytes were expected")
    return 0


def pack_bytes(int dtype, int wire, const unsigned char[::1] src, unsigned char[::1] dst, double scale):
    """`pack` the elements that the bytes of `src` hold into those of `dst`."""
    cdef size_t n = src.shape[0] // itemsize(dtype)
    check_size(src, n, itemsize(dtype))
    check_size(dst, n, itemsize(wire))
    with nogil:
        pack(dtype, wire, &src[0], &dst[0], n, scale)


def unpack_bytes(
    int dtype, int wire, const unsigned char[::1] src, unsigned char[::1] dst, double scale, int64_t divisor
):
    """`unpack` the elements that the bytes of `src` hold into those of `dst`."""
    cdef size_t n = src.shape[0] // itemsize(wire)
    check_size(src, n, itemsize(wire))
    check_size(dst, n, itemsize(dtype))
    with nogil:
        unpack(dtype, wire, &src[0], &dst[0], n, scale, divisor)


def reduce_bytes(int dtype, int op, unsigned char[::1] dst, list srcs, double scale=1.0):
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
        with nogil:
            reduce(dtype, op, &dst[0], pointers, k, n, scale)
    finally:
        free(pointers)


def widen_portable(const unsigned char[::1] src, unsigned char[::1] dst):
    """Convert float16 to float32 as processors without F16C do."""
    cdef size_t n = src.shape[0] // 2
    check_size(dst, n, 4)
    c_widen_portable(<float*>&dst[0], <const Float16Cell*>&src[0], n)


def narrow_portable(const unsigned char[::1] src, unsigned char[::1] dst):
    """Convert float32 to float16 as processors without F16C do."""
    cdef size_t n = src.shape[0] // 4
    check_size(dst, n, 2)
    c_narrow_portable(<Float16Cell*>&dst[0], <const float*>&src[0], n)
