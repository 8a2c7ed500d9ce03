// The element types, and vectors of them in the type that they are computed in: the 16-bit types in float32.
//
// Included by kernels.h once per instruction set, each time in a namespace of its own, with
//   FUSIONCTL_LANES     float32 elements per vector register,
//   FUSIONCTL_F16C      1 where the processor converts float16 itself,
//   FUSIONCTL_LOOP      what marks a function that is inlined into the code of that instruction set.
// Conversions round to nearest even, too large becomes infinity, NaN stays NaN.  Addresses need no alignment.

constexpr size_t VECTOR_BYTES = 4 * FUSIONCTL_LANES;

typedef float Floats __attribute__((vector_size(4 * FUSIONCTL_LANES)));
typedef uint32_t Words __attribute__((vector_size(4 * FUSIONCTL_LANES)));
typedef int32_t Ints __attribute__((vector_size(4 * FUSIONCTL_LANES)));
typedef uint16_t Halves __attribute__((vector_size(2 * FUSIONCTL_LANES)));

template <class V>
static FUSIONCTL_LOOP V load_vector(const void* src) {
    V v;
    std::memcpy(&v, src, sizeof v);
    return v;
}

template <class V>
static FUSIONCTL_LOOP void store_vector(void* dst, V v) {
    std::memcpy(dst, &v, sizeof v);
}

template <class T>
struct Lanes {
    typedef T Wide __attribute__((vector_size(4 * FUSIONCTL_LANES)));
    static FUSIONCTL_LOOP Wide load(const void* src) { return load_vector<Wide>(src); }
    static FUSIONCTL_LOOP void store(void* dst, Wide x) { store_vector(dst, x); }
};

template <>
struct Lanes<bfloat16> {
    typedef Floats Wide;

    static FUSIONCTL_LOOP Wide load(const void* src) {
        return (Floats)(__builtin_convertvector(load_vector<Halves>(src), Words) << 16);
    }

    static FUSIONCTL_LOOP void store(void* dst, Wide x) {
        const Words bits = (Words)x;
        const Words rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
        const Words quiet = (bits >> 16) | 0x40;
        store_vector(dst, __builtin_convertvector(x != x ? quiet : rounded, Halves));
    }
};

template <>
struct Lanes<float16> {
    typedef Floats Wide;

#if FUSIONCTL_F16C

    static FUSIONCTL_LOOP Wide load(const void* src) {
        return (Floats)_mm256_cvtph_ps(load_vector<__m128i>(src));
    }

    static FUSIONCTL_LOOP void store(void* dst, Wide x) {
        store_vector(dst, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
    }

#else

    static FUSIONCTL_LOOP Wide load(const void* src) {
        constexpr uint32_t rebias = (127 - 15) << 23;
        const Words bits = __builtin_convertvector(load_vector<Halves>(src), Words);
        const Words magnitude = bits & 0x7fff;
        const Words normal = (magnitude << 13) + rebias;
        const Words special = normal + rebias;
        // A denormal is that many units of 2^-24, all of them normal numbers in float32.
        const Words denormal = (Words)(__builtin_convertvector((Ints)magnitude, Floats) * 0x1p-24f);
        const Words finite = magnitude < 0x400 ? denormal : normal;
        return (Floats)((magnitude >= 0x7c00 ? special : finite) | (bits & 0x8000) << 16);
    }

    static FUSIONCTL_LOOP void store(void* dst, Wide x) {
        constexpr uint32_t rebias = (127 - 15) << 23;
        const Words bits = (Words)x;
        const Words magnitude = bits & 0x7fffffff;
        const Words shifted = magnitude - rebias;
        const Words normal = (shifted + 0xfff + ((shifted >> 13) & 1)) >> 13;
        // One unit in the last place of 0.5f is 2^-24, the unit of float16's denormals: the addition rounds to it.
        const Words denormal = (Words)((Floats)magnitude + 0.5f) - 0x3f000000;
        const Words finite = magnitude < 0x38800000 ? denormal : normal;
        const Words bounded = magnitude >= 0x47800000 ? Words{} + 0x7c00 : finite;
        const Words result = x != x ? Words{} + 0x7e00 : bounded;
        store_vector(dst, __builtin_convertvector(result | ((bits >> 16) & 0x8000), Halves));
    }

#endif
};
