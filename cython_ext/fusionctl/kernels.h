// The loops behind _kernels: pack, unpack and reduce for each element type.
//
// The 16-bit types pass through float32 a block at a time, and so do three and more sources of a reduction: a block
// of each and its accumulator stay in the first-level cache, and a destination may be one of the sources, because
// a block is read before it is written.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <type_traits>

#include "half.h"

// The loop's only overlap is an element with itself (dst is src), which needs no order.
#if defined(__clang__)
#define FUSIONCTL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FUSIONCTL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace fusionctl {

constexpr size_t BLOCK = 1024;

// Indices of request.DTYPES, and values of request.ReduceOp.
enum DType { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64, INT8, UINT8, INT16, UINT16, BOOL };
enum Op { SUM = 1, MIN = 3, MAX = 4, PRODUCT = 5 };

[[noreturn]] static void broken(const char* what, int a, int b) {
    std::fprintf(stderr, "fusionctl: no kernel for %s (%d, %d)\n", what, a, b);
    std::abort();
}

static size_t itemsize(int dtype) {
    constexpr unsigned char sizes[] = {2, 2, 4, 8, 4, 8, 1, 1, 2, 2, 1};
    if (dtype < 0 || dtype > BOOL) broken("dtype", dtype, 0);
    return sizes[dtype];
}

template <class T>
FUSIONCTL_INLINE Cell<T>* cells(void* p) { return static_cast<Cell<T>*>(p); }

template <class T>
FUSIONCTL_INLINE const Cell<T>* cells(const void* p) { return static_cast<const Cell<T>*>(p); }

FUSIONCTL_INLINE void copy(void* dst, const void* src, size_t bytes) {
    if (dst != src && bytes) std::memcpy(dst, src, bytes);
}

// ---- Scaling -------------------------------------------------------------------------------------------------

// Truncation toward zero; what does not fit becomes the nearest integer that does, and NaN zero.
template <class T>
FUSIONCTL_INLINE T truncated(double x) {
    constexpr double low = double(std::numeric_limits<T>::min());
    if (!(x > low)) return x != x ? T(0) : std::numeric_limits<T>::min();
    return x >= -low ? std::numeric_limits<T>::max() : T(x);
}

template <class T>
FUSIONCTL_INLINE void scale_floats(void* dst, const void* src, size_t n, T factor) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<T>(dst)[i].value = cells<T>(src)[i].value * factor;
}

template <class From, class To>
FUSIONCTL_INLINE void scale_ints(void* dst, const void* src, size_t n, double scale) {
    if (scale == 1.0) {
        FUSIONCTL_INDEPENDENT
        for (size_t i = 0; i < n; ++i) cells<To>(dst)[i].value = To(cells<From>(src)[i].value);
    } else {
        FUSIONCTL_INDEPENDENT
        for (size_t i = 0; i < n; ++i)
            cells<To>(dst)[i].value = truncated<To>(double(cells<From>(src)[i].value) * scale);
    }
}

template <class From, class To>
FUSIONCTL_INLINE void divide_ints(void* dst, const void* src, size_t n, int64_t divisor) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<To>(dst)[i].value = To(int64_t(cells<From>(src)[i].value) / divisor);
}

template <class From, class To>
FUSIONCTL_INLINE void divide_and_scale_ints(void* dst, const void* src, size_t n, double scale, int64_t divisor) {
    if (divisor == 1) return scale_ints<From, To>(dst, src, n, scale);
    if (scale == 1.0) return divide_ints<From, To>(dst, src, n, divisor);
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i)
        cells<To>(dst)[i].value = truncated<To>(double(int64_t(cells<From>(src)[i].value) / divisor) * scale);
}

// ---- The 16-bit types, by way of float32 -----------------------------------------------------------------------

template <class H>
FUSIONCTL_INLINE void scale_halves(void* dst, const void* src, size_t n, float factor) {
    float block[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t m = std::min(BLOCK, n - start);
        widen(block, cells<H>(src) + start, m);
        for (size_t i = 0; i < m; ++i) block[i] *= factor;
        narrow(cells<H>(dst) + start, block, m);
    }
}

template <class H>
FUSIONCTL_INLINE void widen_and_scale(void* dst, const void* src, size_t n, float factor) {
    float block[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t m = std::min(BLOCK, n - start);
        widen(block, cells<H>(src) + start, m);
        scale_floats<float>(cells<float>(dst) + start, block, m, factor);
    }
}

template <class H>
FUSIONCTL_INLINE void scale_and_narrow(void* dst, const void* src, size_t n, float factor) {
    float block[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t m = std::min(BLOCK, n - start);
        scale_floats<float>(block, cells<float>(src) + start, m, factor);
        narrow(cells<H>(dst) + start, block, m);
    }
}

// ---- Reduction -------------------------------------------------------------------------------------------------

template <class T>
using arithmetic = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::common_type<T>>::type;

// Sums and products of integers wrap around; minimum and maximum of floats are NaN if any operand is.
template <class T>
struct Sum {
    static T of(T a, T b) { return T(arithmetic<T>(a) + arithmetic<T>(b)); }
};

template <class T>
struct Product {
    static T of(T a, T b) { return T(arithmetic<T>(a) * arithmetic<T>(b)); }
};

template <class T>
struct Min {
    static T of(T a, T b) { return a < b || a != a ? a : b; }
};

template <class T>
struct Max {
    static T of(T a, T b) { return a > b || a != a ? a : b; }
};

template <class T, template <class> class F>
FUSIONCTL_INLINE void accumulate(T* __restrict acc, const Cell<T>* __restrict src, size_t n) {
    for (size_t i = 0; i < n; ++i) acc[i] = F<T>::of(acc[i], src[i].value);
}

template <class T, template <class> class F>
FUSIONCTL_INLINE void reduce_pair(void* dst, const void* a, const void* b, size_t n) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<T>(dst)[i].value = F<T>::of(cells<T>(a)[i].value, cells<T>(b)[i].value);
}

template <class T, template <class> class F>
FUSIONCTL_INLINE void reduce_plain(void* dst, const void** srcs, int k, size_t n) {
    if (k == 2) return reduce_pair<T, F>(dst, srcs[0], srcs[1], n);
    T block[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t m = std::min(BLOCK, n - start);
        std::memcpy(block, cells<T>(srcs[0]) + start, m * sizeof(T));
        for (int j = 1; j < k; ++j) accumulate<T, F>(block, cells<T>(srcs[j]) + start, m);
        std::memcpy(cells<T>(dst) + start, block, m * sizeof(T));
    }
}

template <class H, template <class> class F>
FUSIONCTL_INLINE void reduce_halves(void* dst, const void** srcs, int k, size_t n, double scale) {
    const float factor = static_cast<float>(scale);
    float block[BLOCK];
    float operand[BLOCK];
    for (size_t start = 0; start < n; start += BLOCK) {
        const size_t m = std::min(BLOCK, n - start);
        widen(block, cells<H>(srcs[0]) + start, m);
        for (int j = 1; j < k; ++j) {
            widen(operand, cells<H>(srcs[j]) + start, m);
            accumulate<float, F>(block, cells<float>(operand), m);
        }
        if (factor != 1.0f)
            for (size_t i = 0; i < m; ++i) block[i] *= factor;
        narrow(cells<H>(dst) + start, block, m);
    }
}

template <template <class> class F>
FUSIONCTL_INLINE void reduce_by(int dtype, void* dst, const void** srcs, int k, size_t n, double scale) {
    switch (dtype) {
        case FLOAT16: return reduce_halves<float16, F>(dst, srcs, k, n, scale);
        case BFLOAT16: return reduce_halves<bfloat16, F>(dst, srcs, k, n, scale);
        case FLOAT32: return reduce_plain<float, F>(dst, srcs, k, n);
        case FLOAT64: return reduce_plain<double, F>(dst, srcs, k, n);
        case INT32: return reduce_plain<int32_t, F>(dst, srcs, k, n);
        case INT64: return reduce_plain<int64_t, F>(dst, srcs, k, n);
        default: broken("reduce dtype", dtype, 0);
    }
}

// ---- What _kernels exports ---------------------------------------------------------------------------------------

constexpr int conversion(int dtype, int wire) { return dtype * 16 + wire; }

FUSIONCTL_CLONES void pack(int dtype, int wire, const void* src, void* dst, size_t n, double scale) {
    if (dtype == wire && scale == 1.0) return copy(dst, src, n * itemsize(dtype));
    switch (conversion(dtype, wire)) {
        case conversion(FLOAT16, FLOAT16): return scale_halves<float16>(dst, src, n, float(scale));
        case conversion(BFLOAT16, BFLOAT16): return scale_halves<bfloat16>(dst, src, n, float(scale));
        case conversion(FLOAT16, FLOAT32): return widen_and_scale<float16>(dst, src, n, float(scale));
        case conversion(BFLOAT16, FLOAT32): return widen_and_scale<bfloat16>(dst, src, n, float(scale));
        case conversion(FLOAT32, FLOAT32): return scale_floats<float>(dst, src, n, float(scale));
        case conversion(FLOAT64, FLOAT64): return scale_floats<double>(dst, src, n, scale);
        case conversion(INT32, INT32): return scale_ints<int32_t, int32_t>(dst, src, n, scale);
        case conversion(INT32, INT64): return scale_ints<int32_t, int64_t>(dst, src, n, scale);
        case conversion(INT64, INT64): return scale_ints<int64_t, int64_t>(dst, src, n, scale);
        default: broken("pack", dtype, wire);
    }
}

FUSIONCTL_CLONES void unpack(int dtype, int wire, const void* src, void* dst, size_t n, double scale, int64_t divisor) {
    if (dtype == wire && scale == 1.0 && divisor == 1) return copy(dst, src, n * itemsize(dtype));
    const double factor = scale / double(divisor);
    switch (conversion(dtype, wire)) {
        case conversion(FLOAT16, FLOAT16): return scale_halves<float16>(dst, src, n, float(factor));
        case conversion(BFLOAT16, BFLOAT16): return scale_halves<bfloat16>(dst, src, n, float(factor));
        case conversion(FLOAT16, FLOAT32): return scale_and_narrow<float16>(dst, src, n, float(factor));
        case conversion(BFLOAT16, FLOAT32): return scale_and_narrow<bfloat16>(dst, src, n, float(factor));
        case conversion(FLOAT32, FLOAT32): return scale_floats<float>(dst, src, n, float(factor));
        case conversion(FLOAT64, FLOAT64): return scale_floats<double>(dst, src, n, factor);
        case conversion(INT32, INT32): return divide_and_scale_ints<int32_t, int32_t>(dst, src, n, scale, divisor);
        case conversion(INT32, INT64): return divide_and_scale_ints<int64_t, int32_t>(dst, src, n, scale, divisor);
        case conversion(INT64, INT64): return divide_and_scale_ints<int64_t, int64_t>(dst, src, n, scale, divisor);
        default: broken("unpack", dtype, wire);
    }
}

FUSIONCTL_CLONES void reduce(int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale) {
    if (k == 1 && scale == 1.0) return copy(dst, srcs[0], n * itemsize(dtype));
    switch (op) {
        case SUM: return reduce_by<Sum>(dtype, dst, srcs, k, n, scale);
        case MIN: return reduce_by<Min>(dtype, dst, srcs, k, n, scale);
        case MAX: return reduce_by<Max>(dtype, dst, srcs, k, n, scale);
        case PRODUCT: return reduce_by<Product>(dtype, dst, srcs, k, n, scale);
        default: broken("reduce op", op, 0);
    }
}

}  // namespace fusionctl
