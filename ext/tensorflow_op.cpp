// TensorFlow's door: an asynchronous operation that averages gradients over all ranks.
//
// It is registered through TensorFlow's C API (tensorflow/c/ops.h and kernels.h), whose
// functions are looked up at run time in the library that is loaded. So it is built without
// TensorFlow, and one build serves all of its versions. `tf.load_op_library` loads it.
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "exchange_door.h"

namespace {

using easyddl::ExchangeDoor;
using easyddl::Piece;

// Opaque types of the C API, and the constants used of its enumerations (tf_status.h,
// tf_datatype.h), which are part of its ABI.
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
    // Loaded already, and not necessarily into the global scope: it is found by its name.
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

// Set once this library has found TensorFlow, before any kernel runs.
std::unique_ptr<const TensorFlow> tf;
// Why it has not.
std::string load_failure;
ExchangeDoor engine{};

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

// TensorFlow passes the callback of an asynchronous kernel as a pointer to a std::function on
// its caller's stack, which is gone by the time the kernel is done: it must be copied. That
// leans on TensorFlow's standard library being this one.
using Finished = std::function<void()>;

Finished copy_of(TF_AsyncOpKernelDoneCallback* done) {
  // In libstdc++ a std::function ends with two pointers to code. Pointers into no library at
  // all would show another layout, and calling them would crash with no reason given.
  void* words[sizeof(Finished) / sizeof(void*)];
  std::memcpy(words, static_cast<void*>(done), sizeof words);
  Dl_info info;
  for (size_t i = 2; i < 4; ++i) {
    if (dladdr(words[i], &info) == 0) {
      throw std::runtime_error(
          "This TensorFlow was built with another C++ standard library than easyddl");
    }
  }
  return *reinterpret_cast<const Finished*>(done);
}

// What a node of a graph knows: which gradients it takes to which exchange.
struct Kernel {
  int64_t exchange = 0;
  int64_t bucket = 0;
  std::vector<std::vector<int64_t>> shapes;
};

// One run of a kernel, until its callback.
struct Run {
  TF_OpKernelContext* context;
  Finished finished;
  std::vector<Tensor> tensors;  // held while their memory is in use

  void end(const std::string& error) {
    tensors.clear();
    if (!error.empty()) {
      Status status;
      tf->SetStatus(status, kAborted, error.c_str());
      tf->OpKernelContext_Failure(context, status);
    }
    finished();
  }
};

int64_t int_attribute(TF_OpKernelConstruction* construction, const char* name) {
  Status status;
  int64_t value = 0;
  tf->OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  status.check();
  return value;
}

std::vector<int64_t> list_attribute(TF_OpKernelConstruction* construction, const char* name) {
  Status status;
  int32_t length = 0, unused = 0;
  tf->OpKernelConstruction_GetAttrSize(construction, name, &length, &unused, status);
  status.check();
  std::vector<int64_t> values(static_cast<size_t>(length));
  if (length == 0) return values;
  tf->OpKernelConstruction_GetAttrInt64List(construction, name, values.data(), length, status);
  status.check();
  return values;
}

// Each shape as its rank, followed by its dimensions.
std::vector<std::vector<int64_t>> split_shapes(const std::vector<int64_t>& flat) {
  std::vector<std::vector<int64_t>> shapes;
  for (auto at = flat.begin(); at != flat.end();) {
    const auto end = at + 1 + *at;
    shapes.emplace_back(at + 1, end);
    at = end;
  }
  return shapes;
}

void* create(TF_OpKernelConstruction* construction) {
  try {
    auto kernel = std::make_unique<Kernel>();
    kernel->exchange = int_attribute(construction, "exchange");
    kernel->bucket = int_attribute(construction, "bucket");
    kernel->shapes = split_shapes(list_attribute(construction, "shapes"));
    return kernel.release();
  } catch (const std::exception& error) {
    Status status;
    tf->SetStatus(status, kAborted, error.what());
    tf->OpKernelConstruction_Failure(construction, status);
    return nullptr;
  }
}

void destroy(void* kernel) { delete static_cast<Kernel*>(kernel); }

// Where gradient `index` is read and written: in its own memory if nobody else needs it.
Piece take(Run& run, int index, const std::vector<int64_t>& shape) {
  Status status;
  int forwarded = -1;
  // Before the input is fetched, since whoever holds it keeps it from being overwritten.
  Tensor output(tf->ForwardInputOrAllocateOutput(run.context, &index, 1, index, shape.data(),
                                                 static_cast<int>(shape.size()), &forwarded,
                                                 status));
  status.check();
  TF_Tensor* fetched = nullptr;
  tf->GetInput(run.context, index, &fetched, status);
  Tensor input(fetched);
  status.check();
  const size_t bytes = tf->TensorByteSize(input.get());
  if (bytes != tf->TensorByteSize(output.get())) {
    throw std::runtime_error("Gradient " + std::to_string(index) +
                             " has another shape than its variable");
  }
  const Piece piece{static_cast<const uint8_t*>(tf->TensorData(input.get())),
                    static_cast<uint8_t*>(tf->TensorData(output.get())), bytes};
  run.tensors.push_back(std::move(input));
  run.tensors.push_back(std::move(output));
  return piece;
}

// What this rank's batch counts for: the input after the gradients and the step.
double weight_of(const Run& run, int index) {
  Status status;
  TF_Tensor* fetched = nullptr;
  tf->GetInput(run.context, index, &fetched, status);
  const Tensor input(fetched);
  status.check();
  return *static_cast<const float*>(tf->TensorData(input.get()));
}

// The last output: one.
void count(Run& run, int index) {
  Status status;
  const Tensor output(
      tf->AllocateOutput(run.context, index, kInt64, nullptr, 0, sizeof(int64_t), status));
  status.check();
  *static_cast<int64_t*>(tf->TensorData(output.get())) = 1;
}

void compute(void* opaque, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& kernel = *static_cast<const Kernel*>(opaque);
  auto run = std::make_shared<Run>(Run{context, copy_of(done), {}});
  std::vector<Piece> arrays;
  double weight = 1;
  try {
    const int gradients = static_cast<int>(kernel.shapes.size());
    for (int i = 0; i < gradients; ++i) {
      arrays.push_back(take(*run, i, kernel.shapes[static_cast<size_t>(i)]));
    }
    weight = weight_of(*run, gradients + 1);
    count(*run, gradients);
  } catch (const std::exception& error) {
    return run->end(error.what());
  }
  engine.submit(kernel.exchange, static_cast<size_t>(kernel.bucket), std::move(arrays), weight,
                [run](const std::string& error) { run->end(error); });
}

void register_op() {
  Status status;
  TF_OpDefinitionBuilder* const builder = tf->NewOpDefinitionBuilder("EasyddlExchange");
  tf->OpDefinitionBuilderAddAttr(builder, "T: list(type) >= 1");
  tf->OpDefinitionBuilderAddAttr(builder, "exchange: int");
  tf->OpDefinitionBuilderAddAttr(builder, "bucket: int");
  tf->OpDefinitionBuilderAddAttr(builder, "shapes: list(int)");
  tf->OpDefinitionBuilderAddInput(builder, "gradients: T");
  // Not read: it is what makes each step another computation. The op is not declared
  // stateful, since TensorFlow runs stateful ops one after the other; without this input it
  // would fold the exchange of a constant gradient into a constant.
  tf->OpDefinitionBuilderAddInput(builder, "step: int64");
  tf->OpDefinitionBuilderAddInput(builder, "weight: float");
  tf->OpDefinitionBuilderAddOutput(builder, "means: T");
  // Always 1. An operation whose values nobody takes is dropped, or made to do nothing where
  // others only wait for it; this one's value is added up, so that it runs at every step.
  tf->OpDefinitionBuilderAddOutput(builder, "count: int64");
  tf->RegisterOpDefinition(builder, status);
  status.check();
}

void register_kernel() {
  Status status;
  // An asynchronous kernel: one that blocked would keep a thread of a pool that may have two.
  TF_KernelBuilder* const builder =
      tf->NewAsyncKernelBuilder("EasyddlExchange", "CPU", create, compute, destroy);
  tf->RegisterKernelBuilder("EasyddlExchange", builder, status);
  status.check();
}

// tf.load_op_library collects the ops that a library registers while it is loaded.
const bool registered = [] {
  try {
    tf = std::make_unique<const TensorFlow>();
    register_op();
    register_kernel();
    return true;
  } catch (const std::exception& error) {
    load_failure = error.what();
    return false;
  }
}();

}  // namespace

// Connects this library with the engine's. Returns null, or why there is no operation.
extern "C" __attribute__((visibility("default"))) const char* easyddl_connect(
    const ExchangeDoor* door) {
  engine = *door;
  return registered ? nullptr : load_failure.c_str();
}
