// A GPU's context, memory, streams and events, each released at the end of its scope.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu/cuda_driver.h"

namespace easyddl {

inline CudaAddress address(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

// The GPU in whose memory an array lies, by CUDA's number. Throws if it lies in none.
int gpu_of(const void* array);

// The primary context of a GPU: the one that frameworks use. Held for as long as the process.
CudaContext context_of(int gpu);

// Makes a context this thread's own until the end of the scope.
class CurrentContext {
 public:
  explicit CurrentContext(CudaContext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  CudaContext before_ = nullptr;
};

// Memory of the GPU whose context is current. It grows, and loses what it held.
class GpuBuffer {
 public:
  GpuBuffer() = default;
  ~GpuBuffer();
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  uint8_t* at_least(size_t bytes);
  uint8_t* data() const { return data_; }
  void release();

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// Memory of the host that GPUs read and write while the host does other things.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  ~PinnedBuffer();
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  uint8_t* at_least(size_t bytes);
  uint8_t* data() const { return data_; }
  void release();

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

// While it lives, what this thread asks of the driver breaks no capture of a CUDA graph that
// another thread is making: such as PyTorch's, in whose mode any thread's query or allocation
// breaks it.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_;
};

// Throws if what is queued on a stream is not done but captured in a CUDA graph.
void refuse_capture(CudaStream stream);

// A stream that does not wait for the default one, on which frameworks may compute.
class GpuStream {
 public:
  GpuStream();
  ~GpuStream();
  GpuStream(const GpuStream&) = delete;
  GpuStream& operator=(const GpuStream&) = delete;
  CudaStream get() const { return stream_; }

 private:
  CudaStream stream_ = nullptr;
};

class GpuEvent {
 public:
  GpuEvent();
  ~GpuEvent();
  GpuEvent(GpuEvent&& other) noexcept;
  GpuEvent& operator=(GpuEvent&&) = delete;

  // An event that was never recorded counts as come: it must be recorded before it is waited for.
  void record(CudaStream stream);
  bool has_come() const;
  void make_stream_wait(CudaStream stream) const;

 private:
  CudaEvent event_ = nullptr;
};

}  // namespace easyddl
