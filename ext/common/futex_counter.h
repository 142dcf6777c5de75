// A counter in shared memory that processes wait for.
#pragma once

#include <atomic>
#include <cstdint>

#include "common/wait.h"

namespace easyddl {

// A counter in shared memory that ranks advance and wait for. It wraps around; two of its
// values are compared by the sign of their difference.
class FutexCounter {
 public:
  // Adds one. Whoever makes the counter reach `target` wakes the ranks that sleep.
  void advance(uint32_t target);

  // Returns once the counter has reached `target`. Spins first, because waking a sleeping
  // thread takes longer than a small collective; then gives its core to others, because the
  // rank that is waited for may need it; then sleeps, because a core belongs to computation.
  void wait(uint32_t target, bool cores_are_shared, const Idle& idle);

  bool reached(uint32_t target) const;

  // Adds one, and wakes all who wait for a greater value than `count` returned.
  void ring();
  uint32_t count() const { return arrived_.load(std::memory_order_acquire); }

 private:
  void sleep_until(uint32_t target, const Idle& idle);

  std::atomic<uint32_t> arrived_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace easyddl
