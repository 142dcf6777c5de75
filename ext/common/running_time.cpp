#include "common/running_time.h"

#include <algorithm>

namespace easyddl {
namespace {

constexpr std::chrono::seconds kLongestGap{5};

}  // namespace

void RunningTime::tick() {
  const std::lock_guard<std::mutex> lock(mutex_);
  tick(Clock::now());
}

void RunningTime::tick(Clock::time_point now) {
  const std::chrono::duration<double> gap = now - last_tick_;
  if (gap > kLongestGap) pauses_.push_back({now, gap});
  last_tick_ = now;
}

double RunningTime::seconds_since(Clock::time_point begin) {
  using Seconds = std::chrono::duration<double>;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Clock::time_point now = Clock::now();
  tick(now);
  Seconds seconds = now - begin;
  for (const Pause& pause : pauses_) {
    if (pause.end > begin) seconds -= std::min(pause.length, Seconds(pause.end - begin));
  }
  return seconds.count();
}

}  // namespace easyddl
