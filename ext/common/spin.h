// The first part of every wait, in which the thread does not sleep.
#pragma once

#include <sched.h>

#include <chrono>

namespace easyddl {

inline constexpr std::chrono::microseconds kSpin{50};
inline constexpr std::chrono::microseconds kYield{400};

inline void relax_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Spins or yields for a short time. Returns whether `ready` became true within that time.
template <class Ready>
bool ready_soon(Ready ready, bool cores_are_shared) {
  if (ready()) return true;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  if (!cores_are_shared) {
    // Does not yield, because other work on this core would then keep it for a whole time slice.
    // After a sleep the rank gets the core back at once.
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        relax_core();
      }
    } while (std::chrono::steady_clock::now() - start < kSpin);
    return false;
  }
  // Does not spin, because the rank that this one waits for may need this core.
  do {
    sched_yield();
    if (ready()) return true;
  } while (std::chrono::steady_clock::now() - start < kYield);
  return false;
}

}  // namespace easyddl
