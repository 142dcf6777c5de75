// Notices at once that a process of this machine has died.
#pragma once

#include <string>

#include "runtime/shared_segment.h"
#include "runtime/topology.h"

namespace easyddl {

// A launcher ends a job when one of its processes dies, but not all of them say which rank
// that was. The survivors do. The ranks of a machine stand in a ring: a thread of each holds
// a robust mutex in shared memory and sleeps until it gets that of the next one, which is when
// the kernel takes it from a dying process. The kernel does that before it frees the process's
// memory and tells its parent, so that the survivors speak before the launcher ends them.
class LivenessMonitor {
 public:
  // Collective over topology.machine. Must live as long as the process.
  explicit LivenessMonitor(const Topology& topology);

  // From now on the end of this process is no surprise to its peers.
  void announce_end();

  // From now on no process's end is reported: this process has printed why the job ends.
  void announce_end_of_all();

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
