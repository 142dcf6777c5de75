// The order between a framework's streams and the thread of an exchange.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "gpu_memory.h"

namespace easyddl {

// A framework queues work on a stream and goes on. What it hands in is there once the stream has
// come to that point; and what it queues next must find the result. So a ticket records an event
// for the exchange's thread, and then the stream waits until the ticket is called.
//
// It waits for a word of pinned memory, the number of the last ticket that was called: tickets are
// called in the order of their numbers. Where the driver cannot have a stream wait for a word, a
// function on the host waits instead.
class StreamOrder {
 public:
  struct Ticket {
    uint32_t number = 0;
    size_t slot = 0;
    CudaStream stream = nullptr;
  };

  // For arrays on that GPU. It is lent until it is given back, and never destroyed: a stream may
  // come to a word long after it was called. So numbers go on from one borrower to the next.
  static StreamOrder* borrow(int gpu);
  static void give_back(StreamOrder* order);

  int gpu() const { return gpu_; }

  // On the framework's thread. `enter` marks where its stream is now, and reads a weight that
  // lies on the GPU, unless it is null. `hold` makes the stream wait for the ticket.
  Ticket enter(const float* weight, CudaStream stream);
  void hold(const Ticket& ticket);

  // On the exchange's thread. Whether the stream has come to the ticket's mark, and the weight
  // that it read before; and how other streams wait for that mark.
  bool has_come(const Ticket& ticket) const;
  float weight(const Ticket& ticket) const;
  void hold_up(CudaStream stream, const Ticket& ticket) const;

  // Calls the ticket: once `stream` has done what it has to do, or at once.
  void call_after(CudaStream stream, const Ticket& ticket);
  void call(const Ticket& ticket);

  // The ticket's place is free for another.
  void give_back(const Ticket& ticket);

 private:
  struct Wait {  // of a function on the host
    StreamOrder* order;
    uint32_t number;
  };

  explicit StreamOrder(int gpu);

  bool can_wait_for_words();
  void wait_on_host(const Wait& wait);
  bool is_called(uint32_t number) const;

  static constexpr size_t kSlots = 256;  // tickets at a time

  const int gpu_;
  const CudaContext context_;
  PinnedBuffer pinned_;
  std::atomic<uint32_t>* word_ = nullptr;  // the number of the last ticket that was called
  float* weights_ = nullptr;               // by slot
  std::vector<GpuEvent> marks_;            // by slot
  bool words_hold_streams_ = false;
  std::mutex mutex_;
  std::condition_variable slot_is_free_, called_;
  std::vector<size_t> free_;
  uint32_t last_ = 0;  // number given
};

}  // namespace easyddl
