# Element-wise loops on raw memory; addresses need no alignment.  `dtype` is an index of request.DTYPES, `op` a value of
# request.ReduceOp: SUM, MIN, MAX, PRODUCT, or AVERAGE of integers.  Buffers are disjoint or identical, never shifted.

# dst[i] = factor * src[i], rounded once; integers are scaled in float64 and truncated toward zero.  Every bit is copied
# where the factor is 1, as it is for bool.
cdef void scale(int dtype, const void* src, void* dst, size_t n, double factor) noexcept nogil

# dst[i] = srcs[0][i] op srcs[1][i] op ... op srcs[k-1][i], in that order; `dst` may be one of the sources.
# Floats are multiplied by `scale` in the end, the 16-bit types before their only rounding; for integers it is 1.
# A NaN among the operands gives NaN.  AVERAGE is the exact sum of integers divided by `scale`, truncated toward zero.
cdef void reduce(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale
) noexcept nogil

# The same for every op but ADASUM, AVERAGE of floats among them: floats are multiplied by `factor`, a mean of integers
# is their sum divided by `divisor`.
cdef void combine(
    int dtype, int op, void* dst, const void** srcs, int k, size_t n, double factor, int divisor
) noexcept nogil

# dst = (1 - ab / 2aa) a + (1 - ab / 2bb) b with the scalar products of the two vectors of n elements (Maleki et al.,
# "Scaling distributed training with adaptive summation", MLSys 2021, section 3); `dst` may be one of them.
cdef void adasum(int dtype, void* dst, const void* a, const void* b, size_t n) noexcept nogil

# n elements that change no result of `op`: zeros, ones, or the greatest or least there is.
cdef void neutral(int dtype, int op, void* dst, size_t n) noexcept nogil
