#include "reducer/reducer_group.h"

#include <utility>

#include "collectives/barrier.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"

namespace easyddl {

GpuCommunicator& ReducerGroup::gpu() {
  const std::lock_guard<std::mutex> lock(gpu_mutex_);
  if (gpu_ == nullptr) {
    gpu_ = std::make_unique<GpuCommunicator>(world());
    world().add_to_finish([gpu = gpu_.get()] { gpu->monitor().drain(); });
  }
  return *gpu_;
}

StepSumThread& ReducerGroup::sums() {
  const std::lock_guard<std::mutex> lock(sums_mutex_);
  if (sums_ != nullptr) return *sums_;
  uninterruptible_barrier(communicator_,
                          Fingerprint("the creation of the first sum within a step"));
  std::unique_ptr<StepSumThread> made;
  try {
    all_or_none(world().comm(), [&] { made = std::make_unique<StepSumThread>(world()); });
  } catch (...) {
    keep_forever(std::move(made));  // its thread still uses it
    throw;
  }
  sums_ = std::move(made);
  return *sums_;
}

}  // namespace easyddl
