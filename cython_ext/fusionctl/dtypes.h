// The element types: indices of request.DTYPES, and their sizes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace fusionctl {

enum DType { FLOAT16, BFLOAT16, FLOAT32, FLOAT64, INT32, INT64, INT8, UINT8, INT16, UINT16, BOOL };

[[noreturn]] static inline void broken(const char* what, int a, const char* how, int b) {
    std::fprintf(stderr, "fusionctl: no kernel for %s %d %s %d\n", what, a, how, b);
    std::abort();
}

static inline size_t itemsize(int dtype) {
    constexpr unsigned char sizes[] = {2, 2, 4, 8, 4, 8, 1, 1, 2, 2, 1};
    if (dtype < 0 || dtype > BOOL) broken("dtype", dtype, "of", BOOL + 1);
    return sizes[dtype];
}

// Bytes of a tensor.
static inline size_t tensor_bytes(int dtype, int ndim, const int64_t* shape) {
    size_t nbytes = itemsize(dtype);
    for (int i = 0; i < ndim; ++i) nbytes *= (size_t)shape[i];
    return nbytes;
}

}  // namespace fusionctl
