# Declarations of dtypes.h (C++): the element types by their codes.
from libc.stdint cimport int64_t

cdef extern from "dtypes.h" namespace "fusionctl" nogil:
    size_t itemsize(int dtype)
    size_t tensor_bytes(int dtype, int ndim, const int64_t* shape)
