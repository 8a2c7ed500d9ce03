# Element-wise loops on raw memory; addresses need no alignment.  `dtype` and `wire` are indices of request.DTYPES,
# `op` is a value of request.ReduceOp (SUM, MIN, MAX or PRODUCT).  Buffers are disjoint or identical, never shifted.
from libc.stdint cimport int64_t

# dst[i] = scale * src[i], from `dtype` to `wire`: the same type, int32 to int64, or a 16-bit type to float32.
# Integers are scaled in float64 and truncated toward zero.  Types that cannot be reduced are copied: scale is 1.
cdef void pack(int dtype, int wire, const void* src, void* dst, size_t n, double scale) noexcept nogil

# dst[i] = (src[i] / divisor) * scale, from `wire` back to `dtype`.  Floats are multiplied by scale / divisor, rounded
# once; integers are divided exactly, truncated toward zero, and then scaled like those of `pack`.
cdef void unpack(
    int dtype, int wire, const void* src, void* dst, size_t n, double scale, int64_t divisor
) noexcept nogil

# dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[k-1][i], in that order; `dst` may be one of the sources.
# Floats are multiplied by `scale` in the end, the 16-bit types before their only rounding; for integers it is 1.
# A NaN among the operands gives NaN.
cdef void reduce(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale
) noexcept nogil
