// The loops of pack, unpack and reduce, included by kernels.h like half.h, on whose vectors they work.
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

template <class From, class To>
static FUSIONCTL_LOOP void scale_tile(char* dst, const char* src, size_t m, typename Computed<To>::type factor) {
    const Tile<From> in = load_tile<From>(src, m);
    Tile<To> out;
    for (size_t u = 0; u < TILE_VECTORS; ++u) out.v[u] = in.v[u] * factor;
    store_tile<To>(dst, out, m);
}

template <class From, class To>
static FUSIONCTL_LOOP void scale_floats(void* dst, const void* src, size_t n, double scale) {
    const auto factor = typename Computed<To>::type(scale);
    const char* in = static_cast<const char*>(src);
    char* out = static_cast<char*>(dst);
    size_t i = 0;
    for (; i + TILE<To> <= n; i += TILE<To>)
        scale_tile<From, To>(out + i * sizeof(To), in + i * sizeof(From), TILE<To>, factor);
    if (i < n) scale_tile<From, To>(out + i * sizeof(To), in + i * sizeof(From), n - i, factor);
}

// Where no type changes, alternating loads and stores, as the compiler makes them, outrun the tile's bursts.
template <class T>
static FUSIONCTL_LOOP void scale_plain(void* dst, const void* src, size_t n, double scale) {
    const T factor = T(scale);
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<T>(dst)[i].value = cells<T>(src)[i].value * factor;
}

// Truncation toward zero; what does not fit becomes the nearest integer that does, and NaN zero.
template <class T>
static FUSIONCTL_LOOP T truncated(double x) {
    constexpr double low = double(std::numeric_limits<T>::min());
    if (!(x > low)) return x != x ? T(0) : std::numeric_limits<T>::min();
    return x >= -low ? std::numeric_limits<T>::max() : T(x);
}

template <class From, class To>
static FUSIONCTL_LOOP void scale_ints(void* dst, const void* src, size_t n, double scale) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i)
        cells<To>(dst)[i].value = truncated<To>(double(cells<From>(src)[i].value) * scale);
}

template <class From, class To>
static FUSIONCTL_LOOP void divide_ints(void* dst, const void* src, size_t n, int64_t divisor) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<To>(dst)[i].value = To(int64_t(cells<From>(src)[i].value) / divisor);
}

template <class From, class To>
static FUSIONCTL_LOOP void convert_ints(void* dst, const void* src, size_t n, double scale, int64_t divisor) {
    if (scale == 1.0) return divide_ints<From, To>(dst, src, n, divisor);
    if (divisor == 1) return scale_ints<From, To>(dst, src, n, scale);
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i)
        cells<To>(dst)[i].value = truncated<To>(double(int64_t(cells<From>(src)[i].value) / divisor) * scale);
}

template <class From, class To>
static FUSIONCTL_LOOP void widen_ints(void* dst, const void* src, size_t n) {
    FUSIONCTL_INDEPENDENT
    for (size_t i = 0; i < n; ++i) cells<To>(dst)[i].value = cells<From>(src)[i].value;
}

FUSIONCTL_ENTRY void pack(int dtype, int wire, const void* src, void* dst, size_t n, double scale) {
    if (dtype == wire && scale == 1.0) return copy(dst, src, n * itemsize(dtype));
    switch (conversion(dtype, wire)) {
        case conversion(FLOAT16, FLOAT16): return scale_floats<float16, float16>(dst, src, n, scale);
        case conversion(FLOAT16, FLOAT32): return scale_floats<float16, float>(dst, src, n, scale);
        case conversion(BFLOAT16, BFLOAT16): return scale_floats<bfloat16, bfloat16>(dst, src, n, scale);
        case conversion(BFLOAT16, FLOAT32): return scale_floats<bfloat16, float>(dst, src, n, scale);
        case conversion(FLOAT32, FLOAT32): return scale_plain<float>(dst, src, n, scale);
        case conversion(FLOAT64, FLOAT64): return scale_plain<double>(dst, src, n, scale);
        case conversion(INT32, INT32): return scale_ints<int32_t, int32_t>(dst, src, n, scale);
        case conversion(INT64, INT64): return scale_ints<int64_t, int64_t>(dst, src, n, scale);
        case conversion(INT32, INT64):
            return scale == 1.0 ? widen_ints<int32_t, int64_t>(dst, src, n)
                                : scale_ints<int32_t, int64_t>(dst, src, n, scale);
        default: broken("packing dtype", dtype, "as", wire);
    }
}

FUSIONCTL_ENTRY void unpack(int dtype, int wire, const void* src, void* dst, size_t n, double scale, int64_t divisor) {
    if (dtype == wire && scale == 1.0 && divisor == 1) return copy(dst, src, n * itemsize(dtype));
    const double factor = scale / double(divisor);
    switch (conversion(dtype, wire)) {
        case conversion(FLOAT16, FLOAT16): return scale_floats<float16, float16>(dst, src, n, factor);
        case conversion(FLOAT16, FLOAT32): return scale_floats<float, float16>(dst, src, n, factor);
        case conversion(BFLOAT16, BFLOAT16): return scale_floats<bfloat16, bfloat16>(dst, src, n, factor);
        case conversion(BFLOAT16, FLOAT32): return scale_floats<float, bfloat16>(dst, src, n, factor);
        case conversion(FLOAT32, FLOAT32): return scale_plain<float>(dst, src, n, factor);
        case conversion(FLOAT64, FLOAT64): return scale_plain<double>(dst, src, n, factor);
        case conversion(INT32, INT32): return convert_ints<int32_t, int32_t>(dst, src, n, scale, divisor);
        case conversion(INT32, INT64): return convert_ints<int64_t, int32_t>(dst, src, n, scale, divisor);
        case conversion(INT64, INT64): return convert_ints<int64_t, int64_t>(dst, src, n, scale, divisor);
        default: broken("unpacking dtype", dtype, "from", wire);
    }
}

// ---- Reduction -------------------------------------------------------------------------------------------------

struct Sum {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return a + b; }
};

struct Product {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return a * b; }
};

struct Min {
    template <class V>
    static FUSIONCTL_LOOP V of(V a, V b) { return ((a < b) | (a != a)) ? a : b; }
};

struct Max {
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

// Sums and products of integers wrap around, which only unsigned arithmetic does by definition.
template <class F, class Int32, class Int64>
static FUSIONCTL_LOOP void reduce_by(int dtype, void* dst, const void** srcs, int k, size_t n, double scale) {
    switch (dtype) {
        case FLOAT16: return reduce_tiles<float16, F>(dst, srcs, k, n, scale);
        case BFLOAT16: return reduce_tiles<bfloat16, F>(dst, srcs, k, n, scale);
        case FLOAT32: return reduce_tiles<float, F>(dst, srcs, k, n, scale);
        case FLOAT64: return reduce_tiles<double, F>(dst, srcs, k, n, scale);
        case INT32: return reduce_tiles<Int32, F>(dst, srcs, k, n, scale);
        case INT64: return reduce_tiles<Int64, F>(dst, srcs, k, n, scale);
        default: broken("reducing dtype", dtype, "from sources:", k);
    }
}

FUSIONCTL_ENTRY void reduce(int dtype, int op, void* dst, const void** srcs, int k, size_t n, double scale) {
    if (k == 1 && scale == 1.0) return copy(dst, srcs[0], n * itemsize(dtype));
    switch (op) {
        case SUM: return reduce_by<Sum, uint32_t, uint64_t>(dtype, dst, srcs, k, n, scale);
        case MIN: return reduce_by<Min, int32_t, int64_t>(dtype, dst, srcs, k, n, scale);
        case MAX: return reduce_by<Max, int32_t, int64_t>(dtype, dst, srcs, k, n, scale);
        case PRODUCT: return reduce_by<Product, uint32_t, uint64_t>(dtype, dst, srcs, k, n, scale);
        default: broken("reducing dtype", dtype, "by op", op);
    }
}
