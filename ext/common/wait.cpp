#include "common/wait.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <thread>

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kYield{400};

void pause() {
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
  const Clock::time_point start = Clock::now();
  if (!cores_are_shared) {
    // Other work on this core would keep it for a whole time slice after a yield: from sleep a
    // rank comes back at once.
    do {
      for (int i = 0; i < 64; ++i) {
        if (ready()) return true;
        pause();
      }
    } while (Clock::now() - start < kSpin);
    return false;
  }
  // The rank waited for may be next in line for this very core: spinning would keep it waiting.
  do {
    sched_yield();
    if (ready()) return true;
  } while (Clock::now() - start < kYield);
  return false;
}

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
