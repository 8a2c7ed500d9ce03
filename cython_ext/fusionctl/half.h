// Conversions between float32 and the 16-bit types, a block at a time.
//
// Both directions are branch-free, so that compilers vectorise them anywhere; on x86-64 float16 uses the F16C
// instructions where the processor has them.  Rounding is to nearest even, too large becomes infinity, NaN stays NaN.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

#if defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 14)
#define FUSIONCTL_CLONES __attribute__((target_clones("default", "avx2")))
#else
#define FUSIONCTL_CLONES
#endif
#define FUSIONCTL_INLINE static inline __attribute__((always_inline))

namespace fusionctl {

struct float16 {
    uint16_t bits;
};

struct bfloat16 {
    uint16_t bits;
};

// An element at an address that need not be a multiple of its size, in memory of any declared type.
template <class T>
struct __attribute__((packed, may_alias)) Cell {
    T value;
};

FUSIONCTL_INLINE uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return bits;
}

FUSIONCTL_INLINE float float_of(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

FUSIONCTL_INLINE float to_float(bfloat16 x) {
    return float_of(uint32_t(x.bits) << 16);
}

FUSIONCTL_INLINE bfloat16 to_bfloat16(float x) {
    const uint32_t bits = bits_of(x);
    const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const uint32_t quiet = (bits >> 16) | 0x40;
    return {uint16_t((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded)};
}

FUSIONCTL_INLINE float to_float(float16 x) {
    constexpr uint32_t rebias = (127 - 15) << 23;
    const uint32_t magnitude = x.bits & 0x7fff;
    const uint32_t normal = (magnitude << 13) + rebias + (magnitude >= 0x7c00 ? rebias : 0);
    // A denormal is that many units of 2^-24, all of them normal numbers in float32.
    const uint32_t denormal = bits_of(float(int32_t(magnitude)) * 0x1p-24f);
    return float_of((magnitude < 0x400 ? denormal : normal) | uint32_t(x.bits & 0x8000) << 16);
}

FUSIONCTL_INLINE float16 to_float16(float x) {
    constexpr uint32_t rebias = (127 - 15) << 23;
    const uint32_t bits = bits_of(x);
    const uint32_t magnitude = bits & 0x7fffffff;
    const uint32_t shifted = magnitude - rebias;
    const uint32_t normal = (shifted + 0xfff + ((shifted >> 13) & 1)) >> 13;
    // One unit in the last place of 0.5f is 2^-24, the float16 denormals' unit: the addition rounds to it.
    const uint32_t denormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
    const uint32_t finite = magnitude < 0x38800000 ? denormal : normal;
    const uint32_t bounded = magnitude >= 0x47800000 ? 0x7c00 : finite;
    const uint32_t result = magnitude > 0x7f800000 ? 0x7e00 : bounded;
    return {uint16_t(result | (bits >> 16 & 0x8000))};
}

// widen: out[i] = in[i] as float32; narrow: the inverse, rounded.  Neither allows out to overlap in.
FUSIONCTL_CLONES void widen_portable(float* __restrict out, const Cell<float16>* __restrict in, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = to_float(in[i].value);
}

FUSIONCTL_CLONES void narrow_portable(Cell<float16>* __restrict out, const float* __restrict in, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i].value = to_float16(in[i]);
}

FUSIONCTL_CLONES void widen(float* __restrict out, const Cell<bfloat16>* __restrict in, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i] = to_float(in[i].value);
}

FUSIONCTL_CLONES void narrow(Cell<bfloat16>* __restrict out, const float* __restrict in, size_t n) {
    for (size_t i = 0; i < n; ++i) out[i].value = to_bfloat16(in[i]);
}

#if defined(__x86_64__)

static bool detect_f16c() {
    unsigned eax, ebx, ecx, edx;
    // Support for AVX includes that the operating system saves the wide registers.
    return __builtin_cpu_supports("avx") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx & bit_F16C);
}

static const bool has_f16c = detect_f16c();

__attribute__((target("avx,f16c")))
static void widen_f16c(float* out, const Cell<float16>* in, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(in + i))));
    for (; i < n; ++i) out[i] = to_float(in[i].value);
}

__attribute__((target("avx,f16c")))
static void narrow_f16c(Cell<float16>* out, const float* in, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128((__m128i*)(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; ++i) out[i].value = to_float16(in[i]);
}

#else

static const bool has_f16c = false;
static void widen_f16c(float*, const Cell<float16>*, size_t) {}
static void narrow_f16c(Cell<float16>*, const float*, size_t) {}

#endif

static void widen(float* out, const Cell<float16>* in, size_t n) {
    has_f16c ? widen_f16c(out, in, n) : widen_portable(out, in, n);
}

static void narrow(Cell<float16>* out, const float* in, size_t n) {
    has_f16c ? narrow_f16c(out, in, n) : narrow_portable(out, in, n);
}

}  // namespace fusionctl
