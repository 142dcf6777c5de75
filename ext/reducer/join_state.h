// Whether this rank has batches left, and what the control words say about the other ranks.
#pragma once

#include <cstdint>

#include "reducer/control_word.h"

namespace easyddl {

// What a rank has learned about the others from the control words.
struct JoinSummary {
  uint64_t missed = 0;  // steps of other ranks in which this rank had no batch
  // Step numbers, counted from 1 since `reset`; 0 for none yet. They are the same on all ranks,
  // although a rank may submit a step before it has received the previous step's control word.
  uint64_t uneven = 0;  // the first step in which only some ranks had a batch
  uint64_t stop = 0;    // the first step in which a rank asked all ranks to stop
};

// A rank that has no more batches joins: it takes part with zeros in the steps of the others until
// all ranks have joined. The owner's mutex guards this.
class JoinState {
 public:
  void join() { joining_ = true; }
  bool is_joining() const { return joining_; }
  void ask_to_stop(bool stop) { asks_to_stop_ = stop; }

  // Returns this rank's control word for a step.
  ControlWord word(double weight, bool active) const {
    const bool unweighted = active && weight < 0;
    const double mine = !active ? 0 : unweighted ? 1 : weight;
    return {mine, active ? 1. : 0., asks_to_stop_ ? 1. : 0., unweighted ? 1. : 0.};
  }

  // Records the sum of all ranks' control words. `active` says whether this rank had a batch.
  // Returns whether any rank had one. If not, there was no step, and all ranks have joined.
  bool update(const ControlWord& all, bool active, int ranks) {
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
  void reset() {
    summary_ = {};
    taken_ = 0;
    asks_to_stop_ = false;
  }

 private:
  bool joining_ = false;
  bool asks_to_stop_ = false;
  JoinSummary summary_;
  uint64_t taken_ = 0;  // steps since `reset`
};

}  // namespace easyddl
