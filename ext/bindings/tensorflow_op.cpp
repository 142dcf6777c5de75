// TensorFlow's binding: asynchronous operations that reduce gradients over all ranks.
// `EasyddlReduce` averages dense gradients, `EasyddlGather` gathers the rows of sparse gradients.
//
// They are registered through TensorFlow's C API: see tensorflow_api.h. `tf.load_op_library` loads
// this library.
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "bindings/tensorflow_api.h"
#include "reducer/entry_points.h"

namespace {

using namespace easyddl;

// Why the operations could not be registered; empty if they are.
std::string load_failure;
ReducerEntryPoints engine{};

// The attributes of a node of a graph: which gradients it submits to which reducer.
struct Kernel {
  int64_t reducer = 0;
  int64_t bucket = 0;
  std::vector<std::vector<int64_t>> shapes;
};

// One run of a kernel, until its callback.
struct Run {
  TF_OpKernelContext* context;
  DoneCallback finished;
  std::vector<Tensor> tensors;  // kept alive while their memory is in use

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

// Splits a flat list that holds each shape as its rank followed by its dimensions.
std::vector<std::vector<int64_t>> split_shapes(const std::vector<int64_t>& flat) {
  std::vector<std::vector<int64_t>> shapes;
  for (auto at = flat.begin(); at != flat.end();) {
    const auto end = at + 1 + *at;
    shapes.emplace_back(at + 1, end);
    at = end;
  }
  return shapes;
}

// `has_bucket` says whether the operation has an attribute with the number of its first bucket. The
// operation for rows has none.
template <bool has_bucket>
void* create(TF_OpKernelConstruction* construction) {
  try {
    auto kernel = std::make_unique<Kernel>();
    kernel->reducer = int_attribute(construction, "reducer");
    if (has_bucket) kernel->bucket = int_attribute(construction, "bucket");
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

Tensor input_of(const Run& run, int index) {
  Status status;
  TF_Tensor* fetched = nullptr;
  tf->GetInput(run.context, index, &fetched, status);
  Tensor input(fetched);
  status.check();
  return input;
}

// Returns the memory in which gradient `index` is read and written. Its input is forwarded to its
// output if nothing else needs it.
Segment gradient_of(Run& run, int index, const std::vector<int64_t>& shape) {
  Status status;
  int forwarded = -1;
  // Called before the input is fetched, because an input with a second reference is not forwarded.
  Tensor output(tf->ForwardInputOrAllocateOutput(run.context, &index, 1, index, shape.data(),
                                                 static_cast<int>(shape.size()), &forwarded,
                                                 status));
  status.check();
  Tensor input = input_of(run, index);
  const size_t bytes = tf->TensorByteSize(input.get());
  if (bytes != tf->TensorByteSize(output.get())) {
    throw std::runtime_error("Gradient " + std::to_string(index) +
                             " has a different shape from its variable");
  }
  const Segment segment{static_cast<const uint8_t*>(tf->TensorData(input.get())),
                        static_cast<uint8_t*>(tf->TensorData(output.get())), bytes};
  run.tensors.push_back(std::move(input));
  run.tensors.push_back(std::move(output));
  return segment;
}

// Returns the weight of this rank's batch, which is the input after the gradients and the step.
double weight_of(const Run& run, int index) {
  const Tensor input = input_of(run, index);
  return *static_cast<const float*>(tf->TensorData(input.get()));
}

// Writes 1 to the output `index`, the last one.
void write_count(Run& run, int index) {
  Status status;
  const Tensor output(
      tf->AllocateOutput(run.context, index, kInt64, nullptr, 0, sizeof(int64_t), status));
  status.check();
  *static_cast<int64_t*>(tf->TensorData(output.get())) = 1;
}

void compute(void* opaque, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& kernel = *static_cast<const Kernel*>(opaque);
  auto run = std::make_shared<Run>(Run{context, DoneCallback(done), {}});
  std::vector<Segment> arrays;
  double weight = 1;
  try {
    const int gradients = static_cast<int>(kernel.shapes.size());
    for (int i = 0; i < gradients; ++i) {
      arrays.push_back(gradient_of(*run, i, kernel.shapes[static_cast<size_t>(i)]));
    }
    weight = weight_of(*run, gradients + 1);
    write_count(*run, gradients);
  } catch (const std::exception& error) {
    return run->end(error.what());
  }
  engine.submit(kernel.reducer, static_cast<size_t>(kernel.bucket), std::move(arrays), weight,
                [run](const std::string& error) { run->end(error); });
}

// Returns the rows of sparse gradient `index`, from its inputs for indices and values.
Rows rows_of(Run& run, int index, int gradients) {
  Tensor indices = input_of(run, index), values = input_of(run, gradients + index);
  const Rows rows{static_cast<const int64_t*>(tf->TensorData(indices.get())),
                  static_cast<size_t>(tf->TensorElementCount(indices.get())),
                  static_cast<const uint8_t*>(tf->TensorData(values.get())),
                  tf->TensorByteSize(values.get())};
  run.tensors.push_back(std::move(indices));
  run.tensors.push_back(std::move(values));
  return rows;
}

// Allocates output `index`, which is kept alive until the run ends. `row_bytes` is the size of a
// row.
uint8_t* allocate(Run& run, int index, int type, const std::vector<int64_t>& shape,
                  size_t row_bytes) {
  Status status;
  const size_t bytes = static_cast<size_t>(shape[0]) * row_bytes;
  Tensor output(tf->AllocateOutput(run.context, index, type, shape.data(),
                                   static_cast<int>(shape.size()), bytes, status));
  status.check();
  auto* const data = static_cast<uint8_t*>(tf->TensorData(output.get()));
  run.tensors.push_back(std::move(output));
  return data;
}

// Allocates the outputs for the rows of all ranks. `counts` holds their number for each gradient.
std::vector<RowOutput> allocate_rows(Run& run, const Kernel& kernel,
                                     const std::vector<size_t>& counts) {
  std::vector<RowOutput> room;
  const int gradients = static_cast<int>(counts.size());
  for (int i = 0; i < gradients; ++i) {
    std::vector<int64_t> shape = kernel.shapes[static_cast<size_t>(i)];
    shape[0] = static_cast<int64_t>(counts[static_cast<size_t>(i)]);
    const int type = tf->TensorType(input_of(run, gradients + i).get());
    size_t row_bytes = tf->DataTypeSize(type);
    for (size_t d = 1; d < shape.size(); ++d) row_bytes *= static_cast<size_t>(shape[d]);
    uint8_t* const indices = allocate(run, i, kInt64, {shape[0]}, sizeof(int64_t));
    uint8_t* const values = allocate(run, gradients + i, type, shape, row_bytes);
    room.push_back({reinterpret_cast<int64_t*>(indices), values});
  }
  return room;
}

void compute_rows(void* opaque, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  const Kernel& kernel = *static_cast<const Kernel*>(opaque);
  auto run = std::make_shared<Run>(Run{context, DoneCallback(done), {}});
  std::vector<Rows> rows;
  double weight = 1;
  try {
    const int gradients = static_cast<int>(kernel.shapes.size());
    for (int i = 0; i < gradients; ++i) rows.push_back(rows_of(*run, i, gradients));
    weight = weight_of(*run, 2 * gradients + 1);
    write_count(*run, 2 * gradients);
  } catch (const std::exception& error) {
    return run->end(error.what());
  }
  engine.submit_rows(
      kernel.reducer, std::move(rows), weight,
      [run, &kernel](const std::vector<size_t>& counts) {
        return allocate_rows(*run, kernel, counts);
      },
      [run](const std::string& error) { run->end(error); });
}

using Texts = std::initializer_list<const char*>;

void register_op(const char* name, Texts attributes, Texts inputs, Texts outputs) {
  Status status;
  TF_OpDefinitionBuilder* const builder = tf->NewOpDefinitionBuilder(name);
  for (const char* each : attributes) tf->OpDefinitionBuilderAddAttr(builder, each);
  for (const char* each : inputs) tf->OpDefinitionBuilderAddInput(builder, each);
  for (const char* each : outputs) tf->OpDefinitionBuilderAddOutput(builder, each);
  tf->RegisterOpDefinition(builder, status);
  status.check();
}

// The input `step` is not read. It makes each step a different computation; without it TensorFlow
// would fold the reduction of a constant gradient into a constant. The operations are not declared
// stateful instead, because TensorFlow runs stateful ops one after the other.
//
// The output `count` is always 1. TensorFlow drops an operation whose outputs are unused, or
// replaces it if others only wait for it. The values of this output are summed, so that the
// operation runs at every step.
void register_ops() {
  register_op("EasyddlReduce",
              {"T: list(type) >= 1", "reducer: int", "bucket: int", "shapes: list(int)"},
              {"gradients: T", "step: int64", "weight: float"}, {"means: T", "count: int64"});
  register_op("EasyddlGather",
              {"N: int >= 1", "T: list(type) >= 1", "reducer: int", "shapes: list(int)"},
              {"indices: N * int64", "values: T", "step: int64", "weight: float"},
              {"all_indices: N * int64", "all_values: T", "count: int64"});
}

using Create = void* (*)(TF_OpKernelConstruction*);
using Compute = void (*)(void*, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);

void register_kernel(const char* name, Create create_kernel, Compute compute_kernel) {
  Status status;
  // An asynchronous kernel, because a blocking one would occupy a thread of a pool that may have
  // only two.
  TF_KernelBuilder* const builder =
      tf->NewAsyncKernelBuilder(name, "CPU", create_kernel, compute_kernel, destroy);
  tf->RegisterKernelBuilder(name, builder, status);
  status.check();
}

// Runs when the library is loaded: tf.load_op_library collects the ops that are registered then.
const bool registered = [] {
  try {
    tf = std::make_unique<const TensorFlow>();
    register_ops();
    register_kernel("EasyddlReduce", create<true>, compute);
    register_kernel("EasyddlGather", create<false>, compute_rows);
    return true;
  } catch (const std::exception& error) {
    load_failure = error.what();
    return false;
  }
}();

}  // namespace

// Connects this library with the engine. Returns null, or why the operations are not registered.
extern "C" __attribute__((visibility("default"))) const char* easyddl_connect(
    const ReducerEntryPoints* entry_points) {
  engine = *entry_points;
  return registered ? nullptr : load_failure.c_str();
}
