// Deadlines and Ctrl-C for the start of easyddl, in which ranks cannot send each other messages
// yet.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

#include "common/running_time.h"
#include "runtime/deadlines.h"
#include "runtime/local_ranks.h"

namespace easyddl {

// While easyddl starts, a rank waits in MPI_Init and in collectives of MPI. These cannot be
// interrupted, may hold Python's lock, and wait forever if another rank fails before it enters
// them. A thread that uses neither Python nor MPI monitors them: it prints where the rank waits,
// and ends the process, and so the job, if the wait takes too long, if a rank of this host has
// ended, or after Ctrl-C.
class StartupMonitor {
 public:
  // `rank` is from the launcher, and `host` from the system, because MPI may not have started.
  // `may_exit` says whether the launcher ends the job when a process exits with an error before it
  // has initialised MPI. MPICH's launcher then waits forever, unless a signal ends the process.
  StartupMonitor(int rank, const std::string& host, Deadlines deadlines, LocalRanks local_ranks,
                 bool may_exit);
  ~StartupMonitor();
  StartupMonitor(const StartupMonitor&) = delete;
  StartupMonitor& operator=(const StartupMonitor&) = delete;

  // Records that this rank enters a step of the start, such as "MPI_Init". `has_mpi` says whether
  // MPI has started.
  void enter(const std::string& step, bool has_mpi);

  // Records that the start has ended, with success or not.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;

  void run();
  void look_at_local_ranks();
  [[noreturn]] void end(const std::string& reason, int status, int signal) const;
  std::string describe_wait();
  double seconds();

  const std::string name_;
  const Deadlines deadlines_;
  const LocalRanks local_ranks_;
  const bool may_exit_;
  int looks_with_ended_ranks_ = 0;  // in a row
  int looks_with_readers_ = 0;
  const Clock::time_point since_ = Clock::now();
  RunningTime time_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::string step_ = "its first lines";
  bool has_mpi_ = false, stopped_ = false;
  std::thread thread_;
};

}  // namespace easyddl
