// A counter in shared memory that processes wait for.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/wait.h"

namespace easyddl {

// A counter in shared memory that ranks advance and wait for. It wraps around, so values are
// compared by the sign of their difference.
class FutexCounter {
 public:
  // Adds one. The call that makes the counter reach `target` wakes the sleeping ranks.
  void advance(uint32_t target);

  // Returns once the counter has reached `target`. If each rank has a core, it spins first, because
  // waking a sleeping thread takes longer than a small collective. If ranks share cores, it yields
  // first, because the rank that it waits for may need the core. Then it sleeps, to leave the core
  // to computation.
  void wait(uint32_t target, bool cores_are_shared, const Idle& idle);

  bool reached(uint32_t target) const;

  // Adds one, and wakes all sleeping ranks. To wait for this, pass `count() + 1` to `wait`.
  void ring();
  uint32_t count() const { return arrived_.load(std::memory_order_acquire); }

 private:
  void sleep_until(uint32_t target, const Idle& idle);

  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace easyddl
