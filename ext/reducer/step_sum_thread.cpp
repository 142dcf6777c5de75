#include "reducer/step_sum_thread.h"

#include <algorithm>

#include "common/check.h"
#include "common/thread.h"
#include "profiling/trace.h"
#include "reducer/step_sum.h"

namespace easyddl {

void call_all(const Finished& finished) {
  for (const auto& [done, error] : finished) done(error);
}

StepSumThread::StepSumThread(World& world)
    : topology_(world.topology()),
      segment_(topology_.host.get(),
               sizeof(WakeCounter) * static_cast<size_t>(topology_.local_size)),
      wake_counters_(static_cast<WakeCounter*>(segment_.data())) {
  if (wake_counters_ == nullptr) {
    throw Error("Not all ranks on the host of rank " + std::to_string(topology_.rank) +
                " could open its shared memory.");
  }
  start_thread("easyddl sums", "that computes sums within steps", [this] { run(); }).detach();
}

void StepSumThread::add(StepSum* sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sums_.push_back(sum);
}

void StepSumThread::remove(StepSum* sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sums_.erase(std::remove(sums_.begin(), sums_.end(), sum), sums_.end());
}

void StepSumThread::wake_own() { wake_counters_[topology_.local_rank].counter.ring(); }

void StepSumThread::wake_all() {
  for (int member = 0; member < topology_.local_size; ++member)
    wake_counters_[member].counter.ring();
}

void StepSumThread::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("sums in steps");
  FutexCounter& wakes = wake_counters_[topology_.local_rank].counter;
  const Idle check = [this] { check_all(); };
  for (;;) {
    const uint32_t before = wakes.count();
    if (advance_all()) continue;
    if (is_any_between_hosts_) {
      // MPI wakes no thread, and makes progress only while it is polled.
      poll([&] { return wakes.count() != before || advance_all(); }, topology_.cores_are_shared,
           check);
    } else {
      wakes.wait(before + 1, topology_.cores_are_shared, check);
    }
  }
}

// Returns true if any sum has advanced.
bool StepSumThread::advance_all() {
  Finished finished;
  bool has_advanced = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_any_between_hosts_ = is_any_in_progress_ = false;
    for (StepSum* sum : sums_) {
      has_advanced = sum->advance(finished) || has_advanced;
      is_any_between_hosts_ = is_any_between_hosts_ || sum->is_between_hosts();
      is_any_in_progress_ = is_any_in_progress_ || sum->is_in_progress();
    }
  }
  call_all(finished);
  return has_advanced;
}

void StepSumThread::check_all() {
  if (!is_any_in_progress_) return;
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // All sums in a joined step would ask the other ranks the same question, and there may be
    // hundreds. So only one of them asks.
    bool has_checked_joined = false;
    for (StepSum* sum : sums_) {
      const bool has_joined = sum->has_joined_step();
      if (!has_joined || !has_checked_joined) sum->check(finished);
      has_checked_joined = has_checked_joined || has_joined;
    }
  }
  call_all(finished);
}

}  // namespace easyddl
