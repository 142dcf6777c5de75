// Deadlines and Ctrl-C for the start, in which no rank can ask another one anything.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "runtime/deadlines.h"

namespace easyddl {

// While easyddl starts, a rank waits inside of MPI_Init and of collectives of MPI. They return to
// nobody, hold Python's lock or not as they like, and wait for ever if another rank has failed
// before it came to them. A thread without Python and without MPI watches them: it says where the
// rank waits, and ends the process, and the job with it, when that takes too long or after Ctrl-C.
class StartupMonitor {
 public:
  // `rank` and `host` are those that the launcher and the system tell: MPI may not have started.
  StartupMonitor(int rank, const std::string& host, Deadlines deadlines);
  ~StartupMonitor();
  StartupMonitor(const StartupMonitor&) = delete;
  StartupMonitor& operator=(const StartupMonitor&) = delete;

  // This rank enters a step of the start, such as "MPI_Init". `has_mpi`: MPI has started.
  void enter(const std::string& step, bool has_mpi);

  // The start has ended, well or not.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  [[noreturn]] void end(const std::string& reason, int status, int signal) const;
  std::string waits_in() const;
  double seconds() const;

  const std::string who_;
  const Deadlines deadlines_;
  const Clock::time_point since_ = Clock::now();
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string step_ = "its first lines";
  bool has_mpi_ = false, stopped_ = false;
  std::thread thread_;
};

}  // namespace easyddl
