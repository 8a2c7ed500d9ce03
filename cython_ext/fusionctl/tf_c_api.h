// TensorFlow's C API: the few functions that the kernels need, declared by hand and bound at run time to the library
// that TensorFlow has loaded, so that neither its headers nor its library are needed to build.
#pragma once
#include <dlfcn.h>
#include <link.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

#define FUSIONCTL_TF_FUNCTIONS(F)                                                                                     \
    F(TF_Status*, NewStatus, ())                                                                                      \
    F(void, DeleteStatus, (TF_Status*))                                                                               \
    F(void, SetStatus, (TF_Status*, int, const char*))                                                                \
    F(int, GetCode, (const TF_Status*))                                                                               \
    F(const char*, Message, (const TF_Status*))                                                                       \
    F(TF_Tensor*, AllocateTensor, (int, const int64_t*, int, size_t))                                                 \
    F(void, DeleteTensor, (TF_Tensor*))                                                                               \
    F(int, TensorType, (const TF_Tensor*))                                                                            \
    F(int, NumDims, (const TF_Tensor*))                                                                               \
    F(int64_t, Dim, (const TF_Tensor*, int))                                                                          \
    F(void*, TensorData, (const TF_Tensor*))                                                                          \
    F(TF_OpDefinitionBuilder*, NewOpDefinitionBuilder, (const char*))                                                 \
    F(void, OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                       \
    F(void, OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                      \
    F(void, OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                     \
    F(void, OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                        \
    F(void, OpDefinitionBuilderSetShapeInferenceFunction,                                                             \
      (TF_OpDefinitionBuilder*, void (*)(TF_ShapeInferenceContext*, TF_Status*)))                                     \
    F(void, RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                              \
    F(int64_t, ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                           \
    F(TF_ShapeHandle*, NewShapeHandle, ())                                                                            \
    F(void, DeleteShapeHandle, (TF_ShapeHandle*))                                                                     \
    F(TF_ShapeHandle*, ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                      \
    F(void, ShapeInferenceContextSetUnknownShape, (TF_ShapeInferenceContext*, TF_Status*))                            \
    F(void, ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
    F(void, ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))            \
    F(TF_KernelBuilder*, NewKernelBuilder,                                                                            \
      (const char*, const char*, void* (*)(TF_OpKernelConstruction*), void (*)(void*, TF_OpKernelContext*),           \
       void (*)(void*)))                                                                                              \
    F(TF_KernelBuilder*, NewAsyncKernelBuilder,                                                                       \
      (const char*, const char*, void* (*)(TF_OpKernelConstruction*),                                                 \
       void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*), void (*)(void*)))                         \
    F(void, RegisterKernelBuilder, (const char*, TF_KernelBuilder*, TF_Status*))                                      \
    F(void, OpKernelConstruction_GetAttrInt32, (TF_OpKernelConstruction*, const char*, int32_t*, TF_Status*))         \
    F(void, OpKernelConstruction_GetAttrSize,                                                                         \
      (TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*))                                        \
    F(void, OpKernelConstruction_GetAttrInt32List,                                                                    \
      (TF_OpKernelConstruction*, const char*, int32_t*, int, TF_Status*))                                             \
    F(void, OpKernelConstruction_Failure, (TF_OpKernelConstruction*, TF_Status*))                                     \
    F(void, OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                               \
    F(int, NumInputs, (TF_OpKernelContext*))                                                                          \
    F(void, GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                            \
    F(void, SetOutput, (TF_OpKernelContext*, int, const TF_Tensor*, TF_Status*))                                      \
    F(TF_Tensor*, AllocateOutput, (TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*))           \
    F(TF_Tensor*, ForwardInputOrAllocateOutput,                                                                       \
      (TF_OpKernelContext*, const int*, int, int, const int64_t*, int, int*, TF_Status*))                             \
    F(void, RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))

namespace fusionctl::tf {

// The functions by their names without the prefix TF_; null until `bind` has found TensorFlow.
struct Api {
#define FUSIONCTL_TF_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
    FUSIONCTL_TF_FUNCTIONS(FUSIONCTL_TF_MEMBER)
#undef FUSIONCTL_TF_MEMBER
};

// What is missing, or null when all functions were found.
inline const char* bind(Api& api) {
    void* library = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return "libtensorflow_framework.so.2, which is not loaded: import tensorflow first";
    const char* missing = nullptr;
#define FUSIONCTL_TF_FIND(result, name, parameters)                           \
    api.name = reinterpret_cast<result(*) parameters>(dlsym(library, "TF_" #name)); \
    if (api.name == nullptr) missing = "TF_" #name;
    FUSIONCTL_TF_FUNCTIONS(FUSIONCTL_TF_FIND)
#undef FUSIONCTL_TF_FIND
    return missing;
}

// TensorFlow hands an asynchronous kernel the address of a std::function<void()> that dies when the kernel returns, so
// whoever finishes later needs a copy.  That is an implementation detail of TensorFlow's: `is_done_function` tells
// whether what is behind the pointer has libstdc++'s layout (16 bytes of state, then a manager and an invoker, both
// code), and the self-test calls a copy after the kernel has returned.
using Done = std::function<void()>;
static_assert(sizeof(Done) == 32, "std::function has another layout than libstdc++'s");

inline bool is_code(uintptr_t address) {
    auto holds = [](dl_phdr_info* object, size_t, void* wanted) -> int {
        for (int i = 0; i < object->dlpi_phnum; i++) {
            const ElfW(Phdr)& segment = object->dlpi_phdr[i];
            const uintptr_t offset = *static_cast<uintptr_t*>(wanted) - object->dlpi_addr - segment.p_vaddr;
            if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) && offset < segment.p_memsz) return 1;
        }
        return 0;
    };
    return dl_iterate_phdr(holds, &address) == 1;
}

inline bool is_done_function(const TF_AsyncOpKernelDoneCallback* done) {
    const uintptr_t* words = reinterpret_cast<const uintptr_t*>(done);
    return is_code(words[2]) && is_code(words[3]);
}

// What completes an asynchronous kernel, from any thread, once.
struct Pending {
    Pending(TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* callback)
        : context(context), done(*reinterpret_cast<Done*>(callback)) {}
    TF_OpKernelContext* context;
    Done done;
};

inline void finish(Pending* pending) {
    pending->done();
    delete pending;
}

inline void finish_later(Pending* pending) {
    std::thread([pending] {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the kernel has returned by then
        finish(pending);
    }).detach();
}

}  // namespace fusionctl::tf
