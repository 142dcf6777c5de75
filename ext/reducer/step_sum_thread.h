// The thread that all sums inside of steps share.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <vector>

#include "common/futex_counter.h"
#include "common/wait.h"
#include "runtime/shared_segment.h"
#include "runtime/topology.h"

namespace easyddl {

class StepSum;
class World;

// Moves the sums on while threads of the framework compute. It waits for all of them at a time: a
// rank whose arrival completes a phase of any of them wakes those of its host.
class StepSumThread {
 public:
  // That of a world. Made at the first call, by all ranks together.
  static StepSumThread& of(World& world);

  // Collective over the world. Never destroyed: its thread serves for as long as the process lives.
  explicit StepSumThread(World& world);

  void add(StepSum* sum);
  // Once it has returned, the thread knows nothing of it.
  void remove(StepSum* sum);

  // Guards all sums.
  std::mutex& mutex() { return mutex_; }

  // Has this rank's thread, or those of all ranks of the host, look at the sums again.
  void wake_own();
  void wake_all();

 private:
  struct Bell {
    alignas(128) FutexCounter counter;
  };

  void run();
  bool advance_all();
  void check_all();

  const Topology& topology_;
  SharedSegment segment_;
  Bell* bells_;  // one a rank of the host
  std::mutex mutex_;
  std::vector<StepSum*> sums_;
  bool is_any_under_way_ = false, is_any_between_hosts_ = false;  // as `advance_all` has found
};

}  // namespace easyddl
