#include "common/wait.h"

#include <algorithm>
#include <thread>

#include "common/spin.h"

namespace easyddl {

using Clock = std::chrono::steady_clock;

void poll(const std::function<bool()>& ready, bool cores_are_shared, const Idle& idle) {
  if (ready_soon(ready, cores_are_shared)) return;
  std::chrono::microseconds nap{10};
  Clock::time_point next_idle = Clock::now() + kIdlePeriod;
  while (!ready()) {
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(200));
    if (Clock::now() >= next_idle) {
      idle();
      next_idle = Clock::now() + kIdlePeriod;
    }
  }
}

}  // namespace easyddl
