// Whether this rank takes part in steps with a batch, and what the steps tell of the other ranks.
#pragma once

#include <cstdint>

#include "reducer/control_word.h"

namespace easyddl {

// What a rank has learnt of the others from the control words of the steps.
struct JoinSummary {
  uint64_t missed = 0;  // steps that others took while this rank had no batch
  // The first step, counted from 1 since `forget`, in which any rank had none while others did,
  // and in which any has asked all to stop. The same on all ranks; 0 for none yet. Records the
  // step number, not the time of arrival, so that all ranks agree: a rank may submit a step before
  // it has the control word of the one before.
  uint64_t uneven = 0;
  uint64_t stop = 0;
};

// A rank that has no more batches joins: it takes part in the others' steps with zeros until all
// have joined. The owner's lock guards it.
class JoinState {
 public:
  void join() { joining_ = true; }
  bool is_joining() const { return joining_; }
  void ask_to_stop(bool stop) { asks_to_stop_ = stop; }

  // What this rank says at the head of a step.
  ControlWord word(double weight, bool active) const {
    return ControlWord::of(weight, active, asks_to_stop_);
  }

  // Takes in what all ranks have said, of which this one was `active` or not. Returns whether any
  // was: else there was no step, and all have joined.
  bool take_in(const ControlWord& all, bool active, int ranks) {
    if (all.any_stops() && summary_.stop == 0) summary_.stop = taken_ + 1;
    if (!all.any_active()) {
      joining_ = false;
      return false;
    }
    if (!active) ++summary_.missed;
    if (!all.all_active(ranks) && summary_.uneven == 0) summary_.uneven = taken_ + 1;
    return true;
  }
  void end_step() { ++taken_; }

  const JoinSummary& summary() const { return summary_; }
  void forget() {
    summary_ = {};
    taken_ = 0;
    asks_to_stop_ = false;
  }

 private:
  bool joining_ = false;
  bool asks_to_stop_ = false;
  JoinSummary summary_;
  uint64_t taken_ = 0;  // steps, since `forget`
};

}  // namespace easyddl
