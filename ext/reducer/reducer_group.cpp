#include "reducer/reducer_group.h"

#include <utility>

#include "collectives/barrier.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"

namespace easyddl {

GpuCommunicator& ReducerGroup::gpu() {
  const std::lock_guard<std::mutex> lock(shared_->gpu_mutex);
  if (shared_->gpu == nullptr) {
    shared_->gpu = std::make_unique<GpuCommunicator>(world());
    world().add_to_finish([gpu = shared_->gpu.get()] { gpu->monitor().drain(); });
  }
  return *shared_->gpu;
}

StepSumThread& ReducerGroup::sums() {
  const std::lock_guard<std::mutex> lock(shared_->sums_mutex);
  if (shared_->sums != nullptr) return *shared_->sums;
  uninterruptible_barrier(communicator_,
                          Fingerprint("the creation of the first sum within a step"));
  std::unique_ptr<StepSumThread> made;
  try {
    all_or_none(world().comm(), [&] { made = std::make_unique<StepSumThread>(world()); });
  } catch (...) {
    keep_forever(std::move(made));  // its thread still uses it
    throw;
  }
  shared_->sums = std::move(made);
  return *shared_->sums;
}

}  // namespace easyddl
