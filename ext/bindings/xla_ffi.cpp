// XLA's binding: a custom call that averages gradients over all ranks.
//
// JAX uses it in its compiled steps, and TensorFlow in steps that XLA compiles. The call returns at
// once. XLA continues with operations that need the results when the engine's thread has set a
// future, so that none of XLA's threads waits.
#include <dlfcn.h>

#include <array>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/xla_ffi_api.h"
#include "common/subnormal_mode.h"
#include "reducer/entry_points.h"

namespace {

using easyddl::ReducerEntryPoints;
using easyddl::Segment;
using easyddl::SubnormalMode;
namespace xla = easyddl::xla;

ReducerEntryPoints engine{};

xla::Error* error_of(const xla::Api& api, const std::string& message) {
  auto args = xla::sized<xla::ErrorCreateArgs>();
  args.message = message.c_str();
  args.code = xla::kAborted;
  return api.error_create(&args);
}

// Returns the message of an error of XLA, and destroys the error.
std::string message_of(const xla::Api& api, xla::Error* error) {
  auto args = xla::sized<xla::ErrorMessageArgs>();
  args.error = error;
  api.error_message(&args);
  std::string message = args.message;
  auto destroy = xla::sized<xla::ErrorDestroyArgs>();
  destroy.error = error;
  api.error_destroy(&destroy);
  return message;
}

// Throws an error of XLA as an exception.
void check(const xla::Api& api, xla::Error* error) {
  if (error != nullptr) throw std::runtime_error(message_of(api, error));
}

// Answers XLA's request for the version of the interface with which a handler was built. Returns
// false for other calls.
bool answer_metadata(const xla::CallFrame& frame) {
  if (frame.extensions == nullptr || frame.extensions->type != xla::kMetadataExtension) {
    return false;
  }
  xla::Metadata& metadata = *reinterpret_cast<xla::MetadataExtension*>(frame.extensions)->metadata;
  metadata.version.struct_size = sizeof metadata.version;
  metadata.version.major = xla::kMajor;
  metadata.version.minor = xla::kMinor;
  metadata.traits = 0;
  return true;
}

int64_t attribute(const xla::CallFrame& frame, const char* name) {
  const xla::Attributes& all = frame.attributes;
  for (int64_t i = 0; i < all.size; ++i) {
    const xla::ByteSpan& found = *all.names[i];
    if (std::string(found.text, found.length) != name) continue;
    const auto* scalar = static_cast<const xla::Scalar*>(all.values[i]);
    if (all.types[i] != xla::kScalarAttribute || scalar->dtype != xla::kInt64) break;
    return *static_cast<const int64_t*>(scalar->value);
  }
  throw std::runtime_error(std::string("easyddl_reduce has no integer attribute ") + name);
}

const xla::Buffer& buffer(const xla::Values& values, int64_t index) {
  return *static_cast<const xla::Buffer*>(values.values[index]);
}

size_t elements(const xla::Buffer& buffer) {
  size_t count = 1;
  for (int64_t i = 0; i < buffer.rank; ++i) count *= static_cast<size_t>(buffer.dims[i]);
  return count;
}

// Returns the size of an element of the types that can be reduced (xla_data.proto): from number 1
// on bool, four signed and four unsigned integers, and float16 to float64; and bfloat16.
size_t bytes_of_element(int dtype) {
  constexpr std::array<size_t, 13> kBytes{0, 1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8};
  constexpr int kBFloat16 = 16;
  if (dtype == kBFloat16) return 2;
  if (dtype >= 1 && dtype < static_cast<int>(kBytes.size())) {
    return kBytes[static_cast<size_t>(dtype)];
  }
  throw std::runtime_error("easyddl_reduce cannot reduce XLA's type " + std::to_string(dtype));
}

// Returns the arrays of a call. Its arguments are the weight of this rank's batch, and then the
// arrays of whole buckets.
std::vector<Segment> arrays_of(const xla::CallFrame& frame) {
  const xla::Values &arguments = frame.arguments, &results = frame.results;
  if (arguments.size != results.size + 1 || buffer(arguments, 0).dtype != xla::kFloat32) {
    throw std::runtime_error(
        "easyddl_reduce takes a float32 weight, and one array for each result");
  }
  std::vector<Segment> arrays;
  for (int64_t i = 0; i < results.size; ++i) {
    const xla::Buffer &in = buffer(arguments, i + 1), &out = buffer(results, i);
    const size_t bytes = elements(in) * bytes_of_element(in.dtype);
    if (in.dtype != out.dtype || elements(in) != elements(out)) {
      throw std::runtime_error(
          "The results of easyddl_reduce must have the types and sizes of its arrays");
    }
    arrays.push_back(
        {static_cast<const uint8_t*>(in.data), static_cast<uint8_t*>(out.data), bytes});
  }
  return arrays;
}

// Sets a future to available, or to an error. The memory of arguments and results lives until then.
//
// On a CPU, XLA may run the operations that need the results within this call, on this thread. So
// the thread flushes subnormal floats to zero, as XLA's own threads do.
void set_future(const xla::Api& api, xla::Future* future, const std::string& error) {
  const SubnormalMode mode(SubnormalMode::flush);
  if (error.empty()) {
    auto args = xla::sized<xla::FutureAvailableArgs>();
    args.future = future;
    api.future_set_available(&args);
    return;
  }
  auto args = xla::sized<xla::FutureErrorArgs>();
  args.future = future;
  args.error = error_of(api, error);
  api.future_set_error(&args);
}

void reduce(xla::CallFrame& frame) {
  const int64_t number = attribute(frame, "reducer"), first = attribute(frame, "first");
  std::vector<Segment> arrays = arrays_of(frame);
  const double weight = *static_cast<const float*>(buffer(frame.arguments, 0).data);
  const xla::Api& api = *frame.api;
  auto args = xla::sized<xla::FutureCreateArgs>();
  check(api, api.future_create(&args));
  frame.future = args.future;
  engine.submit(
      number, static_cast<size_t>(first), std::move(arrays), weight,
      [&api, future = args.future](const std::string& error) { set_future(api, future, error); });
}

void* stream_of(const xla::CallFrame& frame) {
  auto args = xla::sized<xla::StreamGetArgs>();
  args.context = frame.context;
  check(*frame.api, frame.api->stream_get(&args));
  return args.stream;
}

// Arguments and results, including the weight, are in GPU memory. Work that XLA queues later on its
// stream waits for the results, so that XLA may reuse memory in the order of its stream.
void reduce_on_gpu(const xla::CallFrame& frame) {
  const int64_t number = attribute(frame, "reducer"), first = attribute(frame, "first");
  const auto* weight = static_cast<const float*>(buffer(frame.arguments, 0).data);
  const std::string refused =
      engine.submit_on_gpu(number, static_cast<size_t>(first), arrays_of(frame), weight, 0,
                           stream_of(frame), [](const std::string&) {});
  if (!refused.empty()) throw std::runtime_error(refused);
}

// Throws unless the interface has version 0.1 or later, in which handlers can return before they
// are done. Earlier interfaces had no version.
void require_futures(const xla::Api& api) {
  const bool is_known = api.struct_size >= sizeof(xla::Api) &&
                        api.version.struct_size >= sizeof(xla::Version) &&
                        api.version.major == xla::kMajor && api.version.minor >= xla::kMinor;
  if (!is_known)
    throw std::runtime_error("version 0.1 or later of XLA's foreign function interface is needed");
}

template <class Act>
xla::Error* handle(xla::CallFrame* frame, Act act) {
  try {
    if (answer_metadata(*frame)) return nullptr;
    require_futures(*frame->api);
    if (frame->stage == xla::kExecute) act(*frame);
    return nullptr;
  } catch (const std::exception& error) {
    return error_of(*frame->api, error.what());
  }
}

void register_handler(const xla::Api& api, const char* platform, xla::Handler* handler) {
  constexpr const char* kName = "easyddl_reduce";
  auto args = xla::sized<xla::HandlerRegisterArgs>();
  args.name = {kName, std::strlen(kName)};
  args.platform = {platform, std::strlen(platform)};
  args.execute = handler;
  check(api, api.handler_register(&args));
}

// Returns the interface of the XLA runtime within TensorFlow. JAX registers the handler itself.
const xla::Api& tensorflows_api() {
  using Getter = const xla::Api*();
  void* const library = dlopen("libtensorflow_cc.so.2", RTLD_LAZY | RTLD_NOLOAD);
  void* const getter = library == nullptr ? nullptr : dlsym(library, "_ZN3xla3ffi12GetXlaFfiApiEv");
  if (getter == nullptr)
    throw std::runtime_error("this TensorFlow has no foreign function interface of XLA");
  return *reinterpret_cast<Getter*>(getter)();
}

}  // namespace

#define EASYDDL_EXPORT extern "C" __attribute__((visibility("default")))

// The handlers of the custom call, for host memory and for GPU memory. Its attributes are
// `reducer`, the engine's number of the reducer, and `first`, the first bucket.
EASYDDL_EXPORT xla::Error* easyddl_reduce(xla::CallFrame* frame) { return handle(frame, reduce); }

EASYDDL_EXPORT xla::Error* easyddl_reduce_on_gpu(xla::CallFrame* frame) {
  return handle(frame, reduce_on_gpu);
}

// Connects this library with the engine.
EASYDDL_EXPORT void easyddl_connect_xla(const ReducerEntryPoints* entry_points) {
  engine = *entry_points;
}

// Registers the handlers with TensorFlow. Returns null, or the error. Called once.
EASYDDL_EXPORT const char* easyddl_register_with_tensorflow() {
  static std::string failure;
  try {
    const xla::Api& api = tensorflows_api();
    require_futures(api);
    register_handler(api, "Host", easyddl_reduce);
    register_handler(api, "CUDA", easyddl_reduce_on_gpu);
    return nullptr;
  } catch (const std::exception& error) {
    failure = error.what();
    return failure.c_str();
  }
}
