// The thread that all sums within steps share.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/futex_counter.h"
#include "common/wait.h"
#include "reducer/registry.h"
#include "runtime/shared_segment.h"
#include "runtime/topology.h"
#include "runtime/world.h"

namespace easyddl {

// Functions to call when the mutex is released, each with its argument: an error, or empty for
// none.
using Finished = std::vector<std::pair<Done, std::string>>;
void call_all(const Finished& finished);

class StepSum;

// Advances the sums while threads of the framework compute. It waits for all sums at once: a rank
// that completes a phase of any sum wakes the threads of its host.
class StepSumThread {
 public:
  // Collective over the world. Never destroyed: its thread runs for as long as the process lives.
  explicit StepSumThread(World& world);

  void add(StepSum* sum);
  // The thread does not use the sum after this.
  void remove(StepSum* sum);

  // The mutex that guards all sums.
  std::mutex& mutex() { return mutex_; }

  // Wakes this rank's thread, or the threads of all ranks of the host.
  void wake_own();
  void wake_all();

 private:
  // Incremented to wake the thread of one rank.
  struct WakeCounter {
    alignas(128) FutexCounter counter;
  };

  void run();
  bool advance_all();
  void check_all();

  const Topology& topology_;
  SharedSegment segment_;
  WakeCounter* wake_counters_;  // one for each rank of the host
  std::mutex mutex_;
  std::vector<StepSum*> sums_;
  // After the last `advance_all`.
  bool is_any_in_progress_ = false, is_any_between_hosts_ = false;
};

}  // namespace easyddl
