// The time in which this process runs.
#pragma once

#include <chrono>
#include <mutex>
#include <vector>

namespace easyddl {

// Measures how long a wait has lasted, without the time in which the whole process was stopped. So
// no rank counts as late after a scheduler has suspended the job by SIGSTOP, or a virtual machine
// was paused.
class RunningTime {
 public:
  using Clock = std::chrono::steady_clock;

  // Records that the process runs. A thread must call this, or `seconds_since`, at least once a
  // second. If there was no call for 5 seconds, the process counts as stopped for that time.
  void tick();

  // Returns the seconds since `begin` in which the process ran.
  double seconds_since(Clock::time_point begin);

 private:
  struct Pause {
    Clock::time_point end;
    std::chrono::duration<double> length;
  };

  void tick(Clock::time_point now);

  std::mutex mutex_;
  Clock::time_point last_tick_ = Clock::now();
  std::vector<Pause> pauses_;
};

}  // namespace easyddl
