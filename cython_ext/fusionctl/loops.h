// The loops of scale, reduce and adasum, included by kernels.h like half.h, on whose vectors they work.
//
// A tile of a few vectors is read from every source before it is written, so a destination may be one of the sources,
// and each source is read once.

#include "half.h"

constexpr size_t TILE_VECTORS = 4;

// Elements of a tile: a vector of the computed type holds as many elements of memory.
template <class T>
constexpr size_t TILE = TILE_VECTORS * VECTOR_BYTES / sizeof(typename Computed<T>::type);

template <class T>
struct Tile {
    typename Lanes<T>::Wide v[TILE_VECTORS];
};

template <class T>
static FUSIONCTL_LOOP Tile<T> load_whole(const char* src) {
    Tile<T> tile;
    for (size_t u = 0; u < TILE_VECTORS; ++u)
        tile.v[u] = Lanes<T>::load(src + u * (TILE<T> / TILE_VECTORS) * sizeof(T));
    return tile;
}

template <class T>
static FUSIONCTL_LOOP void store_whole(char* dst, const Tile<T>& tile) {
    for (size_t u = 0; u < TILE_VECTORS; ++u)
        Lanes<T>::store(dst + u * (TILE<T> / TILE_VECTORS) * sizeof(T), tile.v[u]);
}

// The first m elements of a tile; the others are zeros, and are not stored.
template <class T>
static FUSIONCTL_LOOP Tile<T> load_tile(const char* src, size_t m) {
    if (m == TILE<T>) return load_whole<T>(src);
    char staged[TILE<T> * sizeof(T)] = {};
    std::memcpy(staged, src, m * sizeof(T));
    return load_whole<T>(staged);
}

template <class T>
static FUSIONCTL_LOOP void store_tile(char* dst, const Tile<T>& tile, size_t m) {
    if (m == TILE<T>) return store_whole<T>(dst, tile);
    char staged[TILE<T> * sizeof(T)];
    store_whole<T>(staged, tile);
    std::memcpy(dst, staged, m * sizeof(T));
}

// ---- Scaling -------------------------------------------------------------------------------------------------

template <class T>
static FUSIONCTL_LOOP void scale_tile(char* dst, const char* src, size_t m, typename Computed<T>::type factor) {
    Tile<T> tile = load_tile<T>(src, m);
    for (size_t u = 0; u < TILE_VECTORS; ++u) tile.v[u] *= factor;
    store_tile<T>(dst, tile, m);
}

template <class T>
static FUSIONCTL_LOOP void scale_tiles(void* dst, const void* src, size_t n, double factor) {
    const auto rounded = typename Computed<T>::type(factor);
    const char* in = static_cast<const char*>(src);
    char* out = static_cast<char*>(dst);
    size_t i = 0;
    for (; i + TILE<T> <= n; i += TILE<T>) scale_tile<T>(out + i * sizeof(T), in + i * sizeof(T), TILE<T>, rounded);
    if (i < n) scale_tile<T>(out + i * sizeof(T), in + i * sizeof(T), n - i, rounded);
}

// Where no type changes, alternating loads and stores, as the compiler makes them, outrun the tile's bursts.
template <class T>
static FUSIONCTL_LOOP void scale_plain(void* dst, const void* src, size_t n, double factor) {
    const T rounded = T(factor);
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<T>(dst)[i].value = cells<T>(src)[i].value * rounded;
}

// Truncation toward zero; what does not fit becomes the nearest integer that does, and NaN zero.
template <class T>
static FUSIONCTL_LOOP T truncated(double x) {
    constexpr double low = double(std::numeric_limits<T>::min());
    constexpr double beyond = 2.0 * double(std::numeric_limits<T>::max() / 2 + 1);
    if (!(x > low)) return x != x ? T(0) : std::numeric_limits<T>::min();
    return x >= beyond ? std::numeric_limits<T>::max() : T(x);
}

template <class T>
static FUSIONCTL_LOOP void scale_ints(void* dst, const void* src, size_t n, double factor) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<T>(dst)[i].value = truncated<T>(double(cells<T>(src)[i].value) * factor);
}

FUSIONCTL_ENTRY void scale(int dtype, const void* src, void* dst, size_t n, double factor) {
    if (factor == 1.0) return copy(dst, src, n * itemsize(dtype));
    switch (dtype) {
        case FLOAT16: return scale_tiles<float16>(dst, src, n, factor);
        case BFLOAT16: return scale_tiles<bfloat16>(dst, src, n, factor);
        case FLOAT32: return scale_plain<float>(dst, src, n, factor);
        case FLOAT64: return scale_plain<double>(dst, src, n, factor);
        case INT32: return scale_ints<int32_t>(dst, src, n, factor);
        case INT64: return scale_ints<int64_t>(dst, src, n, factor);
        case INT8: return scale_ints<int8_t>(dst, src, n, factor);
        case UINT8: return scale_ints<uint8_t>(dst, src, n, factor);
        case INT16: return scale_ints<int16_t>(dst, src, n, factor);
        case UINT16: return scale_ints<uint16_t>(dst, src, n, factor);
        default: broken("scaling dtype", dtype, "of", BOOL + 1);
    }
}

// ---- Reduction -------------------------------------------------------------------------------------------------

struct Signed { typedef int8_t Int8; typedef int16_t Int16; typedef int32_t Int32; typedef int64_t Int64; };

// Sums and products of integers wrap around, which only unsigned arithmetic does by definition.
struct Wrapped { typedef uint8_t Int8; typedef uint16_t Int16; typedef uint32_t Int32; typedef uint64_t Int64; };

struct Sum : Wrapped {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return a + b; }
};

struct Product : Wrapped {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return a * b; }
};

struct Min : Signed {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
};

struct Max : Signed {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return ((a > b) | (a != a)) ? a : b; }
};

template <class T, class F>
static FUSIONCTL_LOOP void reduce_tile(char* dst, const void** srcs, int k, size_t at, size_t m, double scale) {
    Tile<T> total = load_tile<T>(static_cast<const char*>(srcs[0]) + at, m);
    for (int j = 1; j < k; ++j) {
        const Tile<T> next = load_tile<T>(static_cast<const char*>(srcs[j]) + at, m);
        for (size_t u = 0; u < TILE_VECTORS; ++u) total.v[u] = F::of(total.v[u], next.v[u]);
    }
    if constexpr (std::is_floating_point_v<typename Computed<T>::type>)
        for (size_t u = 0; u < TILE_VECTORS; ++u) total.v[u] *= typename Computed<T>::type(scale);
    store_tile<T>(dst + at, total, m);
}

template <class T, class F>
static FUSIONCTL_LOOP void reduce_tiles(void* dst, const void** srcs, int k, size_t n, double scale) {
    size_t i = 0;
    for (; i + TILE<T> <= n; i += TILE<T>)
        reduce_tile<T, F>(static_cast<char*>(dst), srcs, k, i * sizeof(T), TILE<T>, scale);
    if (i < n) reduce_tile<T, F>(static_cast<char*>(dst), srcs, k, i * sizeof(T), n - i, scale);
}

template <class F>
static FUSIONCTL_LOOP void reduce_by(int dtype, void* dst, const void** srcs, int k, size_t n, double scale) {
    switch (dtype) {
        case FLOAT16: return reduce_tiles<float16, F>(dst, srcs, k, n, scale);
        case BFLOAT16: return reduce_tiles<bfloat16, F>(dst, srcs, k, n, scale);
        case FLOAT32: return reduce_tiles<float, F>(dst, srcs, k, n, scale);
        case FLOAT64: return reduce_tiles<double, F>(dst, srcs, k, n, scale);
        case INT32: return reduce_tiles<typename F::Int32, F>(dst, srcs, k, n, scale);
        case INT64: return reduce_tiles<typename F::Int64, F>(dst, srcs, k, n, scale);
        case INT8: return reduce_tiles<typename F::Int8, F>(dst, srcs, k, n, scale);
        case INT16: return reduce_tiles<typename F::Int16, F>(dst, srcs, k, n, scale);
        case UINT8: case BOOL: return reduce_tiles<uint8_t, F>(dst, srcs, k, n, scale);
        case UINT16: return reduce_tiles<uint16_t, F>(dst, srcs, k, n, scale);
        default: broken("reducing dtype", dtype, "from sources:", k);
    }
}

// The exact mean of integers, truncated toward zero: the sum is wider than they are.
template <class T, class Wide>
static FUSIONCTL_LOOP void mean_ints(void* dst, const void** srcs, int k, size_t n, int64_t divisor) {
    for (size_t i = 0; i < n; ++i) {
        Wide total = 0;
        for (int j = 0; j < k; ++j) total += cells<T>(srcs[j])[i].value;
        const int64_t narrow = int64_t(total);
        cells<T>(dst)[i].value = T(total == narrow ? narrow / divisor : int64_t(total / divisor));
    }
}

static FUSIONCTL_LOOP void reduce_means(int dtype, void* dst, const void** srcs, int k, size_t n, int64_t divisor) {
    switch (dtype) {
        case INT32: return mean_ints<int32_t, int64_t>(dst, srcs, k, n, divisor);
        case INT64: return mean_ints<int64_t, __int128>(dst, srcs, k, n, divisor);
        case INT8: return mean_ints<int8_t, int64_t>(dst, srcs, k, n, divisor);
        case UINT8: return mean_ints<uint8_t, int64_t>(dst, srcs, k, n, divisor);
        case INT16: return mean_ints<int16_t, int64_t>(dst, srcs, k, n, divisor);
        case UINT16: return mean_ints<uint16_t, int64_t>(dst, srcs, k, n, divisor);
        default: broken("averaging dtype", dtype, "from sources:", k);
    }
}

FUSIONCTL_ENTRY void reduce(int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale) {
    if (k == 1 && scale == 1.0) return copy(dst, srcs[0], n * itemsize(dtype));
    switch (op) {
        case AVERAGE: return reduce_means(dtype, dst, srcs, k, n, int64_t(scale));
        case SUM: return reduce_by<Sum>(dtype, dst, srcs, k, n, scale);
        case MIN: return reduce_by<Min>(dtype, dst, srcs, k, n, scale);
        case MAX: return reduce_by<Max>(dtype, dst, srcs, k, n, scale);
        case PRODUCT: return reduce_by<Product>(dtype, dst, srcs, k, n, scale);
        default: broken("reducing dtype", dtype, "by op", op);
    }
}

// ---- Adasum ----------------------------------------------------------------------------------------------------

// A vector of elements in float64.
template <class T>
struct Exact { typedef double Wide __attribute__((vector_size(8 * FUSIONCTL_LANES))); };
template <>
struct Exact<double> { typedef double Wide __attribute__((vector_size(4 * FUSIONCTL_LANES))); };

// Of two gradients the sum of what each has orthogonal to the other, and the mean of what they share.  The products are
// summed in float64; a zero vector leaves the other as it is.
template <class T>
static FUSIONCTL_LOOP void adasum_tiles(void* dst, const void* a, const void* b, size_t n) {
    typedef typename Computed<T>::type Real;
    typedef typename Exact<T>::Wide Doubles;
    const char* left = static_cast<const char*>(a);
    const char* right = static_cast<const char*>(b);
    Doubles aa{}, bb{}, ab{};
    for (size_t i = 0; i < n; i += TILE<T>) {
        const size_t m = n - i < TILE<T> ? n - i : TILE<T>;
        const Tile<T> x = load_tile<T>(left + i * sizeof(T), m), y = load_tile<T>(right + i * sizeof(T), m);
        for (size_t u = 0; u < TILE_VECTORS; ++u) {
            const Doubles p = __builtin_convertvector(x.v[u], Doubles), q = __builtin_convertvector(y.v[u], Doubles);
            aa += p * p;
            bb += q * q;
            ab += p * q;
        }
    }
    double norms[2] = {0.0, 0.0}, dot = 0.0;
    for (size_t k = 0; k < sizeof(Doubles) / 8; ++k) {
        norms[0] += aa[k];
        norms[1] += bb[k];
        dot += ab[k];
    }
    const Real of_a = Real(norms[0] > 0 ? 1 - dot / (2 * norms[0]) : 1);
    const Real of_b = Real(norms[1] > 0 ? 1 - dot / (2 * norms[1]) : 1);
    for (size_t i = 0; i < n; i += TILE<T>) {
        const size_t m = n - i < TILE<T> ? n - i : TILE<T>;
        Tile<T> x = load_tile<T>(left + i * sizeof(T), m);
        const Tile<T> y = load_tile<T>(right + i * sizeof(T), m);
        for (size_t u = 0; u < TILE_VECTORS; ++u) x.v[u] = x.v[u] * of_a + y.v[u] * of_b;
        store_tile<T>(static_cast<char*>(dst) + i * sizeof(T), x, m);
    }
}

FUSIONCTL_ENTRY void adasum(int dtype, void* dst, const void* a, const void* b, size_t n) {
    switch (dtype) {
        case FLOAT16: return adasum_tiles<float16>(dst, a, b, n);
        case BFLOAT16: return adasum_tiles<bfloat16>(dst, a, b, n);
        case FLOAT32: return adasum_tiles<float>(dst, a, b, n);
        case FLOAT64: return adasum_tiles<double>(dst, a, b, n);
        default: broken("adasum of dtype", dtype, "of", BOOL + 1);
    }
}
