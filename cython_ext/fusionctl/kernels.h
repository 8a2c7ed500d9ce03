// What _kernels calls: scale, reduce and adasum, compiled for any processor and for AVX2 with F16C, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "dtypes.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

// The loop's only overlap is an element with itself (dst is src), which needs no order.
#if defined(__clang__)
#define FUSIONCTL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define FUSIONCTL_INDEPENDENT _Pragma("GCC ivdep")
#endif

namespace fusionctl {

struct float16;
struct bfloat16;

template <class T>
struct Computed { typedef T type; };
template <>
struct Computed<float16> { typedef float type; };
template <>
struct Computed<bfloat16> { typedef float type; };

struct float16 { uint16_t bits; };
struct bfloat16 { uint16_t bits; };

// Values of request.ReduceOp.
enum Op { AVERAGE = 0, SUM = 1, ADASUM = 2, MIN = 3, MAX = 4, PRODUCT = 5 };

static inline void copy(void* dst, const void* src, size_t bytes) {
    if (dst != src && bytes) std::memcpy(dst, src, bytes);
}

// An element at an address that need not be a multiple of its size, in memory of any declared type.
template <class T>
struct __attribute__((packed, may_alias)) Cell { T value; };

template <class T>
static inline __attribute__((always_inline)) Cell<T>* cells(void* p) { return static_cast<Cell<T>*>(p); }

template <class T>
static inline __attribute__((always_inline)) const Cell<T>* cells(const void* p) {
    return static_cast<const Cell<T>*>(p);
}

namespace portable {
#define FUSIONCTL_LANES 4
#define FUSIONCTL_F16C 0
#define FUSIONCTL_LOOP inline __attribute__((always_inline))
#define FUSIONCTL_ENTRY static
#include "loops.h"
#undef FUSIONCTL_LANES
#undef FUSIONCTL_F16C
#undef FUSIONCTL_LOOP
#undef FUSIONCTL_ENTRY
}  // namespace portable

#if defined(__x86_64__)

namespace avx2 {
#define FUSIONCTL_LANES 8
#define FUSIONCTL_F16C 1
#define FUSIONCTL_LOOP inline __attribute__((always_inline, target("avx2,f16c")))
#define FUSIONCTL_ENTRY static __attribute__((target("avx2,f16c")))
#include "loops.h"
}  // namespace avx2

static bool detect_avx2() {
    unsigned eax, ebx, ecx, edx;
    __builtin_cpu_init();  // this may run before the constructor that does it
    // The compiler's test includes that the operating system saves the wide registers, but not every one knows F16C.
    return __builtin_cpu_supports("avx2") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static const bool has_avx2 = detect_avx2();

#else

namespace avx2 = portable;
static const bool has_avx2 = false;

#endif

static void scale(int dtype, const void* src, void* dst, size_t n, double factor) {
    (has_avx2 ? avx2::scale : portable::scale)(dtype, src, dst, n, factor);
}

static void reduce(int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale) {
    (has_avx2 ? avx2::reduce : portable::reduce)(dtype, op, dst, srcs, k, n, scale);
}

static void adasum(int dtype, void* dst, const void* a, const void* b, size_t n) {
    (has_avx2 ? avx2::adasum : portable::adasum)(dtype, dst, a, b, n);
}

// The element that changes no result of an op, as 8 bytes of which the first few count.
static uint64_t neutral_element(int dtype, int op) {
    const bool lowest = op == MAX, highest = op == MIN, one = op == PRODUCT;
    if (!lowest && !highest && !one) return 0;
    switch (dtype) {
        case FLOAT16: return one ? 0x3c00 : highest ? 0x7c00 : 0xfc00;
        case BFLOAT16: return one ? 0x3f80 : highest ? 0x7f80 : 0xff80;
        case FLOAT32: return one ? 0x3f800000 : highest ? 0x7f800000 : 0xff800000;
        case FLOAT64: return one ? 0x3ff0000000000000 : highest ? 0x7ff0000000000000 : 0xfff0000000000000;
        case BOOL: return !lowest;
        case UINT8: case UINT16: return one ? 1 : highest ? ~uint64_t(0) : 0;
        default: break;
    }
    const uint64_t least = uint64_t(1) << (8 * itemsize(dtype) - 1);
    return one ? 1 : highest ? least - 1 : least;
}

static void neutral(int dtype, int op, void* dst, size_t n) {
    const uint64_t element = neutral_element(dtype, op);
    const size_t width = itemsize(dtype);
    for (size_t i = 0; i < n; ++i) std::memcpy(static_cast<char*>(dst) + i * width, &element, width);
}

}  // namespace fusionctl
