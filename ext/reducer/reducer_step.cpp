#include "reducer/reducer_step.h"

#include <atomic>

#include "profiling/trace.h"

namespace easyddl {
namespace {

std::atomic<uint64_t> g_reduced_steps{0};

}  // namespace

void ReducerStep::begin(double weight, bool active) {
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    control_word_ = state_.join.word(weight, active);
  }
  if (weights_.needs_first_weights()) {
    weights_.set_first_weights(
        sum_of_control_words(communicator_, control_word_, "the first weights of " + plan_.what));
  }
  weights_.begin_step(control_word_);
}

void ReducerStep::allreduce_control_word() {
  apply_control_word(
      sum_of_control_words(communicator_, control_word_, "the control word of " + text()));
}

void ReducerStep::apply_control_word(const ControlWord& all) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  has_batches_ = state_.join.update(all, control_word_.active != 0, communicator_.size());
  if (!has_batches_) return state_.all_joined.notify_all();
  weights_.update(all);
}

void ReducerStep::end_bucket(bool blocks_host) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  if (++next_ < plan_.num_buckets()) return;
  next_ = 0;
  ++step_;
  state_.join.end_step();
  if (control_word_.active != 0 && blocks_host) {
    state_.blocked_time += std::chrono::steady_clock::now() - last_submission_;
  }
  g_reduced_steps.fetch_add(1);
}

std::function<void()> ReducerStep::trace(size_t bytes, int64_t submitted_at, int64_t begun) const {
  const auto count = [](auto value) { return static_cast<int64_t>(value); };
  return [=, step = step_, bucket = next_, buckets = plan_.num_buckets(), reducer = reducer_,
          is_rounded = plan_.wire.has_value()] {
    Trace::on()->add("bucket", submitted_at, Trace::now(),
                     {{"reducer", reducer},
                      {"step", count(step)},
                      {"bucket", count(bucket)},
                      {"buckets", count(buckets)},
                      {"bytes", count(bytes)},
                      {"in_16_bits", is_rounded},
                      {"begun", begun}});
  };
}

uint64_t reduced_steps() { return g_reduced_steps.load(); }

}  // namespace easyddl
