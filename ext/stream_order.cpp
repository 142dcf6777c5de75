#include "stream_order.h"

#include <algorithm>
#include <memory>
#include <new>

#include "check.h"

namespace easyddl {
namespace {

constexpr unsigned kReached = 0;  // CU_STREAM_WAIT_VALUE_GEQ: compares as numbers that wrap around

std::mutex g_mutex;

std::vector<StreamOrder*>& free_orders() {
  static auto* const orders = new std::vector<StreamOrder*>;
  return *orders;
}

}  // namespace

// All memory is had now, while none of its streams waits: later it might wait for these.
StreamOrder::StreamOrder(int gpu) : gpu_(gpu), context_(context_of(gpu)) {
  const CurrentContext current(context_);
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the GPU writes it too");
  uint8_t* memory = pinned_.at_least(2 * sizeof(uint32_t) + kSlots * sizeof(float));
  word_ = new (memory) std::atomic<uint32_t>(0);
  new (memory + sizeof(uint32_t)) std::atomic<uint32_t>(0);  // to try with
  weights_ = reinterpret_cast<float*>(memory + 2 * sizeof(uint32_t));
  for (size_t slot = kSlots; slot > 0; --slot) {
    marks_.emplace_back();
    free_.push_back(slot - 1);
  }
  words_hold_streams_ = can_wait_for_words();
}

StreamOrder* StreamOrder::borrow(int gpu) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  std::vector<StreamOrder*>& free = free_orders();
  const auto fits = [&](const StreamOrder* each) { return each->gpu_ == gpu; };
  const auto found = std::find_if(free.begin(), free.end(), fits);
  if (found == free.end()) return new StreamOrder(gpu);
  StreamOrder* const order = *found;
  free.erase(found);
  return order;
}

void StreamOrder::give_back(StreamOrder* order) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  free_orders().push_back(order);
}

// Tried rather than asked for: the attribute that tells of it has had several meanings.
bool StreamOrder::can_wait_for_words() {
  if (!cuda().StreamWaitValue32 || !cuda().StreamWriteValue32) return false;
  const GpuStream stream;
  const CudaAddress spare = pinned_.seen_at(word_ + 1);
  if (cuda().StreamWriteValue32(stream.get(), spare, 1, 0) != kCudaSuccess) return false;
  const bool waits = cuda().StreamWaitValue32(stream.get(), spare, 1, kReached) == kCudaSuccess;
  EASYDDL_CUDA(StreamSynchronize, stream.get());
  return waits;
}

StreamOrder::Ticket StreamOrder::enter(const float* weight, CudaStream stream) {
  const CurrentContext current(context_);
  Ticket ticket{0, 0, stream};
  {
    std::unique_lock<std::mutex> lock(mutex_);
    slot_is_free_.wait(lock, [this] { return !free_.empty(); });
    ticket.slot = free_.back();
    free_.pop_back();
    ticket.number = ++last_;
  }
  if (weight != nullptr) {
    EASYDDL_CUDA(MemcpyDtoHAsync, &weights_[ticket.slot], address(weight), sizeof(float), stream);
  }
  marks_[ticket.slot].record(stream);
  return ticket;
}

void StreamOrder::hold(const Ticket& ticket) {
  const CurrentContext current(context_);
  if (words_hold_streams_) {
    EASYDDL_CUDA(StreamWaitValue32, ticket.stream, pinned_.seen_at(word_), ticket.number, kReached);
    return;
  }
  auto* wait = new Wait{this, ticket.number};
  const auto run = [](void* data) {
    const std::unique_ptr<Wait> mine(static_cast<Wait*>(data));
    mine->order->wait_on_host(*mine);
  };
  EASYDDL_CUDA(LaunchHostFunc, ticket.stream, run, wait);
}

void StreamOrder::wait_on_host(const Wait& wait) {
  std::unique_lock<std::mutex> lock(mutex_);
  called_.wait(lock, [&] { return is_called(wait.number); });
}

bool StreamOrder::is_called(uint32_t number) const {
  return static_cast<int32_t>(word_->load(std::memory_order_acquire) - number) >= 0;
}

bool StreamOrder::has_come(const Ticket& ticket) const { return marks_[ticket.slot].has_come(); }

float StreamOrder::weight(const Ticket& ticket) const { return weights_[ticket.slot]; }

void StreamOrder::hold_up(CudaStream stream, const Ticket& ticket) const {
  marks_[ticket.slot].hold_up(stream);
}

// Without words `call` must follow, once the stream's work is done.
void StreamOrder::call_after(CudaStream stream, const Ticket& ticket) {
  if (!words_hold_streams_) return;
  EASYDDL_CUDA(StreamWriteValue32, stream, pinned_.seen_at(word_), ticket.number, 0);
}

void StreamOrder::call(const Ticket& ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  word_->store(ticket.number, std::memory_order_release);
  called_.notify_all();
}

void StreamOrder::give_back(const Ticket& ticket) {
  const std::lock_guard<std::mutex> lock(mutex_);
  free_.push_back(ticket.slot);
  slot_is_free_.notify_one();
}

}  // namespace easyddl
