#include "gpu/memory.h"

#include <map>
#include <mutex>
#include <sstream>
#include <utility>

#include "common/check.h"

namespace easyddl {
namespace {

// Values of cuda.h's enumerations.
constexpr int kMemoryType = 2, kDeviceOrdinal = 9;
constexpr unsigned kDeviceMemory = 2, kUnifiedMemory = 4;
constexpr unsigned kPortable = 1;
constexpr int kRelaxed = 2;  // CU_STREAM_CAPTURE_MODE_RELAXED
constexpr int kCaptureImplicit = 906;
constexpr unsigned kNonBlocking = 1;
constexpr unsigned kNoTiming = 2;

}  // namespace

int gpu_of(const void* array) {
  unsigned type = 0;
  int ordinal = -1;
  const int code = cuda().PointerGetAttribute(&type, kMemoryType, address(array));
  if (code != kCudaSuccess || (type != kDeviceMemory && type != kUnifiedMemory)) {
    std::ostringstream text;
    text << "The array at " << array
         << " was submitted as an array in GPU memory, but is not in the memory of any GPU.";
    throw Error(text.str());
  }
  EASYDDL_CUDA(PointerGetAttribute, &ordinal, kDeviceOrdinal, address(array));
  return ordinal;
}

CudaContext context_of(int gpu) {
  static std::mutex mutex;
  static std::map<int, CudaContext> contexts;
  const std::lock_guard<std::mutex> lock(mutex);
  CudaContext& context = contexts[gpu];
  if (context == nullptr) {
    int device = 0;
    EASYDDL_CUDA(DeviceGet, &device, gpu);
    EASYDDL_CUDA(DevicePrimaryCtxRetain, &context, device);
  }
  return context;
}

CurrentContext::CurrentContext(CudaContext context) {
  EASYDDL_CUDA(CtxGetCurrent, &before_);
  EASYDDL_CUDA(CtxSetCurrent, context);
}

CurrentContext::~CurrentContext() { cuda().CtxSetCurrent(before_); }

uint8_t* allocate_on_gpu(size_t bytes) {
  CudaAddress where = 0;
  EASYDDL_CUDA(MemAlloc, &where, bytes);
  return reinterpret_cast<uint8_t*>(where);
}

void free_on_gpu(uint8_t* data) { cuda().MemFree(address(data)); }

uint8_t* allocate_pinned(size_t bytes) {
  void* where = nullptr;
  EASYDDL_CUDA(MemHostAlloc, &where, bytes, kPortable);
  return static_cast<uint8_t*>(where);
}

void free_pinned(uint8_t* data) { cuda().MemFreeHost(data); }

void copy_to_host(const std::vector<Segment>& arrays, uint8_t* to, CudaStream stream) {
  for (const Segment& array : arrays) {
    if (array.bytes > 0) EASYDDL_CUDA(MemcpyDtoHAsync, to, address(array.in), array.bytes, stream);
    to += array.bytes;
  }
}

void copy_to_gpu(const uint8_t* from, const std::vector<Segment>& arrays, CudaStream stream) {
  for (const Segment& array : arrays) {
    if (array.bytes > 0) {
      EASYDDL_CUDA(MemcpyHtoDAsync, address(array.out), from, array.bytes, stream);
    }
    from += array.bytes;
  }
}

RelaxedCapture::RelaxedCapture() : mode_(kRelaxed) {
  EASYDDL_CUDA(ThreadExchangeStreamCaptureMode, &mode_);
}

RelaxedCapture::~RelaxedCapture() { cuda().ThreadExchangeStreamCaptureMode(&mode_); }

void refuse_capture(CudaStream stream) {
  int status = 0;
  const int code = cuda().StreamIsCapturing(stream, &status);
  if (code != kCaptureImplicit) check_cuda(code, "cuStreamIsCapturing");
  if (code == kCudaSuccess && status == 0) return;
  throw Error(
      "The step is being captured in a CUDA graph, but the reduction of gradients cannot be "
      "captured, because the hosts take part in it at every step. Keep the step out of graphs: do "
      "not use torch.cuda.graph, or the modes of torch.compile that create graphs "
      "(\"reduce-overhead\", \"max-autotune\").");
}

GpuStream::GpuStream() { EASYDDL_CUDA(StreamCreate, &stream_, kNonBlocking); }

GpuStream::~GpuStream() { cuda().StreamDestroy(stream_); }

GpuEvent::GpuEvent() { EASYDDL_CUDA(EventCreate, &event_, kNoTiming); }

GpuEvent::~GpuEvent() {
  if (event_ != nullptr) cuda().EventDestroy(event_);
}

GpuEvent::GpuEvent(GpuEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}

void GpuEvent::record(CudaStream stream) { EASYDDL_CUDA(EventRecord, event_, stream); }

bool GpuEvent::is_reached() const {
  const int code = cuda().EventQuery(event_);
  if (code == kCudaNotReady) return false;
  check_cuda(code, "cuEventQuery");
  return true;
}

void GpuEvent::make_stream_wait(CudaStream stream) const {
  EASYDDL_CUDA(StreamWaitEvent, stream, event_, 0);
}

}  // namespace easyddl
