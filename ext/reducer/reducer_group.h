// Groups of reducers and sums.
#pragma once

#include <memory>
#include <mutex>

#include "collectives/communicator.h"
#include "collectives/gpu_communicator.h"
#include "reducer/step_sum_thread.h"

namespace easyddl {

// Reducers that break together, and the resources that all reducers of the process share: the
// communicator of the GPUs and the thread of the sums. Each of the two is created when it is first
// needed. A group is passed to the constructors of its reducers.
class ReducerGroup {
 public:
  // The first group of the process. Its reducers work over the ranks of `communicator`, and break
  // when it breaks.
  explicit ReducerGroup(Communicator& communicator)
      : communicator_(communicator), shared_(std::make_shared<Shared>()) {}
  // A group of another communicator, with the resources of `other`.
  ReducerGroup(const ReducerGroup& other, Communicator& communicator)
      : communicator_(communicator), shared_(other.shared_) {}
  ReducerGroup(const ReducerGroup&) = delete;
  ReducerGroup& operator=(const ReducerGroup&) = delete;

  Communicator& communicator() const { return communicator_; }
  World& world() const { return communicator_.world(); }

  // Created at the first call, by this rank alone.
  GpuCommunicator& gpu();

  // Created at the first call, by all ranks together.
  StepSumThread& sums();

 private:
  struct Shared {
    std::mutex gpu_mutex, sums_mutex;
    std::unique_ptr<GpuCommunicator> gpu;
    std::unique_ptr<StepSumThread> sums;
  };

  Communicator& communicator_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace easyddl
