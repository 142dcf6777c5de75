// A GPU's context, memory, streams and events, each released at the end of its scope.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "arrays/segment_list.h"
#include "gpu/cuda_driver.h"

namespace easyddl {

inline CudaAddress address(const void* pointer) { return reinterpret_cast<CudaAddress>(pointer); }

// Returns CUDA's number of the GPU whose memory holds an array. Throws if no GPU does.
int gpu_of(const void* array);

// Returns the primary context of a GPU, which frameworks use too. It is held until the process
// ends.
CudaContext context_of(int gpu);

// Makes a context current on this thread until the end of the scope.
class CurrentContext {
 public:
  explicit CurrentContext(CudaContext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  CudaContext before_ = nullptr;
};

// A buffer that loses its contents when it grows. `allocate` and `free` are those of its memory.
template <uint8_t* (*allocate)(size_t bytes), void (*free)(uint8_t* data)>
class GrowingBuffer {
 public:
  GrowingBuffer() = default;
  ~GrowingBuffer() { release(); }
  GrowingBuffer(const GrowingBuffer&) = delete;
  GrowingBuffer& operator=(const GrowingBuffer&) = delete;

  uint8_t* at_least(size_t bytes) {
    if (bytes <= bytes_) return data_;
    release();
    data_ = allocate(bytes);
    bytes_ = bytes;
    return data_;
  }
  uint8_t* data() const { return data_; }
  void release() {
    if (data_ != nullptr) free(std::exchange(data_, nullptr));
    bytes_ = 0;
  }

 private:
  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

uint8_t* allocate_on_gpu(size_t bytes);
void free_on_gpu(uint8_t* data);
uint8_t* allocate_pinned(size_t bytes);
void free_pinned(uint8_t* data);

// A buffer on the GPU whose context is current.
using GpuBuffer = GrowingBuffer<allocate_on_gpu, free_on_gpu>;

// A buffer of pinned host memory, which GPUs read and write asynchronously.
using PinnedBuffer = GrowingBuffer<allocate_pinned, free_pinned>;

// Queue copies between the memory of a GPU and pinned memory, in which the arrays are one after the
// other: of all inputs to it, or of it to all outputs.
void copy_to_host(const std::vector<Segment>& arrays, uint8_t* to, CudaStream stream);
void copy_to_gpu(const uint8_t* from, const std::vector<Segment>& arrays, CudaStream stream);

// Until the end of the scope, driver calls of this thread do not break another thread's capture of
// a CUDA graph. In the capture mode of PyTorch, a query or an allocation of any other thread would.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  int mode_;
};

// Throws if a stream is being captured in a CUDA graph, so that queued work is not executed.
void refuse_capture(CudaStream stream);

// A stream that does not wait for the default stream, on which frameworks may compute.
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

  // An event must be recorded before a wait for it, because CUDA treats an unrecorded event as
  // reached.
  void record(CudaStream stream);
  bool is_reached() const;
  void make_stream_wait(CudaStream stream) const;

 private:
  CudaEvent event_ = nullptr;
};

}  // namespace easyddl
