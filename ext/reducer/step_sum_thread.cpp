#include "reducer/step_sum_thread.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "common/check.h"
#include "common/keep_forever.h"
#include "common/thread.h"
#include "mpi/agreement.h"
#include "profiling/trace.h"
#include "reducer/step_sum.h"
#include "runtime/world.h"

namespace easyddl {

StepSumThread& StepSumThread::of(World& world) {
  return world.shared<StepSumThread>([&] {
    world.meet("the first sum inside of a step");
    std::unique_ptr<StepSumThread> made;
    try {
      all_or_none(world.comm(), [&] { made = std::make_unique<StepSumThread>(world); });
    } catch (...) {
      keep_forever(std::move(made));  // its thread sleeps in it
      throw;
    }
    return made;
  });
}

StepSumThread::StepSumThread(World& world)
    : topology_(world.topology()),
      segment_(topology_.host.get(), sizeof(Bell) * static_cast<size_t>(topology_.local_size)),
      bells_(static_cast<Bell*>(segment_.data())) {
  if (bells_ == nullptr) {
    throw Error("Shared memory of rank " + std::to_string(topology_.rank) +
                "'s host could not be opened by all of its ranks.");
  }
  start_thread("easyddl sums", "that adds up inside of steps", [this] { run(); }).detach();
}

void StepSumThread::add(StepSum* sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sums_.push_back(sum);
}

void StepSumThread::remove(StepSum* sum) {
  const std::lock_guard<std::mutex> lock(mutex_);
  sums_.erase(std::remove(sums_.begin(), sums_.end(), sum), sums_.end());
}

void StepSumThread::wake_own() { bells_[topology_.local_rank].counter.ring(); }

void StepSumThread::wake_all() {
  for (int member = 0; member < topology_.local_size; ++member) bells_[member].counter.ring();
}

void StepSumThread::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("sums in steps");
  FutexCounter& bell = bells_[topology_.local_rank].counter;
  const Idle check = [this] { check_all(); };
  for (;;) {
    const uint32_t rung = bell.count();
    if (advance_all()) continue;
    if (is_any_between_hosts_) {
      // MPI wakes nobody, and makes progress only while it is asked.
      poll([&] { return bell.count() != rung || advance_all(); }, topology_.cores_are_shared,
           check);
    } else {
      bell.wait(rung + 1, topology_.cores_are_shared, check);
    }
  }
}

// True if any sum has got anywhere.
bool StepSumThread::advance_all() {
  StepSum::Finished finished;
  bool has_moved = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_any_between_hosts_ = is_any_under_way_ = false;
    for (StepSum* sum : sums_) {
      has_moved = sum->advance(finished) || has_moved;
      is_any_between_hosts_ = is_any_between_hosts_ || sum->is_between_hosts();
      is_any_under_way_ = is_any_under_way_ || sum->is_under_way();
    }
  }
  for (const auto& [done, error] : finished) done(error);
  return has_moved;
}

void StepSumThread::check_all() {
  if (!is_any_under_way_) return;
  StepSum::Finished finished;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    // Of those that only go along with the others' steps one tells as much as all: what the other
    // ranks do. Hundreds would each ask them.
    bool has_checked_joined = false;
    for (StepSum* sum : sums_) {
      const bool has_joined = sum->has_joined_step();
      if (!has_joined || !has_checked_joined) sum->check(finished);
      has_checked_joined = has_checked_joined || has_joined;
    }
  }
  for (const auto& [done, error] : finished) done(error);
}

}  // namespace easyddl
