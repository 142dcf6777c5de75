// The parts of TensorFlow's C API that the kernels use (tensorflow/c/ops.h, kernels.h and
// tf_tensor.h).
//
// The functions are looked up at run time in the loaded library. So the kernels are built without
// TensorFlow, and one build serves all of its versions.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

namespace easyddl {

// Opaque types of the C API, and values of its enumerations (tf_status.h, tf_datatype.h), which are
// part of its ABI.
struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;
constexpr int kOk = 0;
constexpr int kAborted = 10;
constexpr int kInt64 = 9;

// One function of TensorFlow's C API.
template <class F>
class Function;
template <class R, class... Args>
class Function<R(Args...)> {
 public:
  explicit Function(const char* name) {
    // The library is already loaded, but maybe not into the global scope, so it is opened by its
    // name.
    static void* const library = dlopen("libtensorflow_framework.so.2", RTLD_LAZY | RTLD_NOLOAD);
    function_ = reinterpret_cast<R (*)(Args...)>(dlsym(library, name));
    if (library == nullptr || function_ == nullptr) {
      throw std::runtime_error(std::string("TensorFlow's C API has no function ") + name);
    }
  }
  R operator()(Args... args) const { return function_(args...); }

 private:
  R (*function_)(Args...);
};

struct TensorFlow {
#define EASYDDL_TF(name, ...) \
  Function<__VA_ARGS__> name { "TF_" #name }
  EASYDDL_TF(NewStatus, TF_Status*());
  EASYDDL_TF(DeleteStatus, void(TF_Status*));
  EASYDDL_TF(SetStatus, void(TF_Status*, int, const char*));
  EASYDDL_TF(GetCode, int(const TF_Status*));
  EASYDDL_TF(Message, const char*(const TF_Status*));
  EASYDDL_TF(TensorData, void*(const TF_Tensor*));
  EASYDDL_TF(TensorByteSize, size_t(const TF_Tensor*));
  EASYDDL_TF(TensorType, int(const TF_Tensor*));
  EASYDDL_TF(TensorElementCount, int64_t(const TF_Tensor*));
  EASYDDL_TF(DataTypeSize, size_t(int));
  EASYDDL_TF(DeleteTensor, void(TF_Tensor*));
  EASYDDL_TF(NewOpDefinitionBuilder, TF_OpDefinitionBuilder*(const char*));
  EASYDDL_TF(OpDefinitionBuilderAddAttr, void(TF_OpDefinitionBuilder*, const char*));
  EASYDDL_TF(OpDefinitionBuilderAddInput, void(TF_OpDefinitionBuilder*, const char*));
  EASYDDL_TF(OpDefinitionBuilderAddOutput, void(TF_OpDefinitionBuilder*, const char*));
  EASYDDL_TF(RegisterOpDefinition, void(TF_OpDefinitionBuilder*, TF_Status*));
  EASYDDL_TF(NewAsyncKernelBuilder,
             TF_KernelBuilder*(const char*, const char*, void* (*)(TF_OpKernelConstruction*),
                               void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*),
                               void (*)(void*)));
  EASYDDL_TF(RegisterKernelBuilder, void(const char*, TF_KernelBuilder*, TF_Status*));
  EASYDDL_TF(OpKernelConstruction_GetAttrSize,
             void(TF_OpKernelConstruction*, const char*, int32_t*, int32_t*, TF_Status*));
  EASYDDL_TF(OpKernelConstruction_GetAttrInt64,
             void(TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*));
  EASYDDL_TF(OpKernelConstruction_GetAttrInt64List,
             void(TF_OpKernelConstruction*, const char*, int64_t*, int, TF_Status*));
  EASYDDL_TF(OpKernelConstruction_Failure, void(TF_OpKernelConstruction*, TF_Status*));
  EASYDDL_TF(OpKernelContext_Failure, void(TF_OpKernelContext*, TF_Status*));
  EASYDDL_TF(GetInput, void(TF_OpKernelContext*, int, TF_Tensor**, TF_Status*));
  EASYDDL_TF(AllocateOutput,
             TF_Tensor*(TF_OpKernelContext*, int, int, const int64_t*, int, size_t, TF_Status*));
  EASYDDL_TF(ForwardInputOrAllocateOutput, TF_Tensor*(TF_OpKernelContext*, const int*, int, int,
                                                      const int64_t*, int, int*, TF_Status*));
#undef EASYDDL_TF
};

// Set when this library has found TensorFlow, before any kernel runs.
inline std::unique_ptr<const TensorFlow> tf;

class Status {
 public:
  Status() : status_(tf->NewStatus()) {}
  ~Status() { tf->DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;
  operator TF_Status*() { return status_; }

  void check() const {
    if (tf->GetCode(status_) != kOk) throw std::runtime_error(tf->Message(status_));
  }

 private:
  TF_Status* status_;
};

struct DeleteTensor {
  void operator()(TF_Tensor* tensor) const { tf->DeleteTensor(tensor); }
};
using Tensor = std::unique_ptr<TF_Tensor, DeleteTensor>;

// The callback of an asynchronous kernel. TensorFlow passes it as a pointer to a
// std::function<void()> on its caller's stack, which no longer exists when the kernel is done, so
// it must be copied. TensorFlow is built with libstdc++, but easyddl may be built with another
// standard library. So this copies libstdc++'s std::function, whose layout is part of its ABI
// (bits/std_function.h).
class DoneCallback {
 public:
  explicit DoneCallback(TF_AsyncOpKernelDoneCallback* done) {
    const auto& original = *reinterpret_cast<const Layout*>(done);
    // Pointers that are in no library show that the layout differs. Calling them would crash.
    Dl_info info;
    if (dladdr(reinterpret_cast<void*>(original.manage), &info) == 0 ||
        dladdr(reinterpret_cast<void*>(original.invoke), &info) == 0) {
      throw std::runtime_error(
          "This TensorFlow was built with a C++ standard library that easyddl does not support");
    }
    original.manage(copy_.callable, original.callable, kClone);
    copy_.manage = original.manage;
    copy_.invoke = original.invoke;
  }
  DoneCallback(DoneCallback&& other) noexcept : copy_(other.copy_) { other.copy_.manage = nullptr; }
  DoneCallback& operator=(DoneCallback&&) = delete;
  ~DoneCallback() {
    if (copy_.manage != nullptr) copy_.manage(copy_.callable, copy_.callable, kDestroy);
  }
  void operator()() const { copy_.invoke(copy_.callable); }

 private:
  // A larger callable is on the heap, and its address is here. The bytes may be moved by a copy.
  struct Layout {
    alignas(void*) unsigned char callable[2 * sizeof(void*)];
    bool (*manage)(void* to, const void* from, int operation);
    void (*invoke)(const void* callable);
  };
  static constexpr int kClone = 2, kDestroy = 3;

  Layout copy_{};
};

}  // namespace easyddl
