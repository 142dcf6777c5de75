// Detects at once that a process of this machine has died.
#pragma once

#include <string>

#include "runtime/shared_segment.h"
#include "runtime/topology.h"

namespace easyddl {

// A launcher ends a job when one of its processes dies, but not all launchers name the rank. So the
// surviving ranks do. The ranks of a machine form a ring. A thread of each rank holds a robust
// mutex in shared memory, and waits for the mutex of the next rank. It gets that mutex when the
// kernel releases it for a dying process. The kernel does so before it frees the process's memory
// and notifies its parent, so that the survivors report before the launcher ends them.
class LivenessMonitor {
 public:
  // Collective over topology.machine. Must live as long as the process.
  explicit LivenessMonitor(const Topology& topology);

  // Announces that this process is about to exit, so that its peers do not report its end.
  void announce_exit();

  // Announces that the job ends, for a reason that this process has printed, so that no process's
  // end is reported.
  void announce_job_end();

 private:
  struct SharedState;

  void start(const Topology& topology);
  void watch();

  SharedSegment segment_;
  SharedState* shared_state_;
  int mine_, next_;
  std::string description_;  // of the process that is watched
};

}  // namespace easyddl
