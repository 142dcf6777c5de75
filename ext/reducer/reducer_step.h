// The step of a reducer that is in progress.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/communicator.h"
#include "reducer/control_word.h"
#include "reducer/gradient_weights.h"
#include "reducer/participant.h"
#include "reducer/reducer_plan.h"

namespace easyddl {

// The next bucket, the control words and the weights. One thread at a time uses it. Only the
// members that change `next` and `step` lock the participant's mutex, so that other threads can
// read these while they hold it.
class ReducerStep {
 public:
  ReducerStep(const ReducerPlan& plan, Communicator& communicator, ParticipantState& state,
              int64_t reducer)
      : plan_(plan),
        communicator_(communicator),
        state_(state),
        reducer_(reducer),
        weights_(communicator.size()) {}

  size_t next() const { return next_; }
  uint64_t step() const { return step_; }
  bool are_rows_next() const { return next_ == plan_.buckets.size(); }
  const Bucket& bucket() const { return plan_.buckets[next_]; }
  // Returns a description of the next bucket.
  std::string text() const { return plan_.text_of(next_, step_); }

  // Begins a step. `active` says whether this rank has a batch, whose weight is `weight`.
  void begin(double weight, bool active);

  const ControlWord& control_word() const { return control_word_; }

  // Sums the control words of all ranks alone, before the next bucket.
  void allreduce_control_word();

  // Applies the sum of all ranks' control words. If no rank has a batch, all ranks have joined, and
  // there is no step.
  void apply_control_word(const ControlWord& all);
  bool has_batches() const { return has_batches_; }

  const GradientWeights& weights() const { return weights_; }
  void forget_weights() { weights_.forget(); }

  // Notes the time of a submission. Called with the mutex held.
  void note_submission() { last_submission_ = std::chrono::steady_clock::now(); }

  // Ends the next bucket, which is reduced. `blocks_host` says whether the script's steps wait for
  // it on the host.
  void end_bucket(bool blocks_host);

  // Returns a function that writes the next bucket to the timeline. It may be called after
  // `end_bucket`, when another bucket is the next.
  std::function<void()> trace(size_t bytes, int64_t submitted_at, int64_t begun) const;

 private:
  const ReducerPlan& plan_;
  Communicator& communicator_;
  ParticipantState& state_;
  const int64_t reducer_;  // its number
  GradientWeights weights_;
  ControlWord control_word_;  // this rank's
  bool has_batches_ = true;   // whether any rank has one
  size_t next_ = 0;           // the bucket to reduce next
  uint64_t step_ = 0;
  std::chrono::steady_clock::time_point last_submission_;
};

// Returns how many steps of gradients this process has averaged.
uint64_t reduced_steps();

}  // namespace easyddl
