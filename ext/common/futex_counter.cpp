#include "common/futex_counter.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <climits>

#include "common/spin.h"

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

// The word may live in memory shared between processes, so no FUTEX_PRIVATE_FLAG.
long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr,
                 0);
}

}  // namespace

bool FutexCounter::reached(uint32_t target) const {
  return static_cast<int32_t>(arrived_.load(std::memory_order_acquire) - target) >= 0;
}

void FutexCounter::advance(uint32_t target) {
  const uint32_t now = arrived_.fetch_add(1) + 1;
  if (now == target && sleepers_.load() > 0) futex(&arrived_, FUTEX_WAKE, INT_MAX, nullptr);
}

void FutexCounter::ring() {
  arrived_.fetch_add(1);
  if (sleepers_.load() > 0) futex(&arrived_, FUTEX_WAKE, INT_MAX, nullptr);
}

void FutexCounter::wait(uint32_t target, bool cores_are_shared, const Idle& idle) {
  if (!ready_soon([&] { return reached(target); }, cores_are_shared)) sleep_until(target, idle);
}

void FutexCounter::sleep_until(uint32_t target, const Idle& idle) {
  constexpr timespec kTimeout{0, std::chrono::nanoseconds(kIdlePeriod).count()};
  struct Sleeper {  // counts this rank while it sleeps, also when `idle` throws
    std::atomic<uint32_t>& count;
    explicit Sleeper(std::atomic<uint32_t>& c) : count(c) { count.fetch_add(1); }
    ~Sleeper() { count.fetch_sub(1); }
  } sleeper(sleepers_);
  Clock::time_point next_idle = Clock::now() + kIdlePeriod;
  while (!reached(target)) {
    const uint32_t seen = arrived_.load();
    if (static_cast<int32_t>(seen - target) >= 0) return;
    futex(&arrived_, FUTEX_WAIT, seen, &kTimeout);
    if (Clock::now() >= next_idle) {
      if (!reached(target)) idle();
      next_idle = Clock::now() + kIdlePeriod;
    }
  }
}

}  // namespace easyddl
