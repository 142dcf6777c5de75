// The resources that all reducers and sums of a process share.
#pragma once

#include <memory>
#include <mutex>

#include "collectives/communicator.h"
#include "collectives/gpu_communicator.h"
#include "reducer/step_sum_thread.h"

namespace easyddl {

// Owns the communicator of the GPUs and the thread of the sums. Each is created when it is first
// needed. A process has one group, which is passed to the constructors of reducers.
class ReducerGroup {
 public:
  // The group's reducers work over the ranks of `communicator`, and break when it breaks.
  explicit ReducerGroup(Communicator& communicator) : communicator_(communicator) {}
  ReducerGroup(const ReducerGroup&) = delete;
  ReducerGroup& operator=(const ReducerGroup&) = delete;

  Communicator& communicator() const { return communicator_; }
  World& world() const { return communicator_.world(); }

  // Created at the first call, by this rank alone.
  GpuCommunicator& gpu();

  // Created at the first call, by all ranks together.
  StepSumThread& sums();

 private:
  Communicator& communicator_;
  std::mutex gpu_mutex_, sums_mutex_;
  std::unique_ptr<GpuCommunicator> gpu_;
  std::unique_ptr<StepSumThread> sums_;
};

}  // namespace easyddl
