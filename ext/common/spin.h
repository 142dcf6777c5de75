// The first part of every wait: without sleep.
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

// Spins or yields for a while. True if `ready` came true within that time.
template <class Ready>
bool ready_soon(Ready ready, bool cores_are_shared) {
  if (ready()) return true;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  if (!cores_are_shared) {
    // Other work on this core would keep it for a whole time slice after a yield: from sleep a
    // rank comes back at once.
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        relax_core();
      }
    } while (std::chrono::steady_clock::now() - start < kSpin);
    return false;
  }
  // The rank waited for may be next in line for this very core: spinning would keep it waiting.
  do {
    sched_yield();
    if (ready()) return true;
  } while (std::chrono::steady_clock::now() - start < kYield);
  return false;
}

}  // namespace easyddl
