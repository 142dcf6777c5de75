// The control word, which the ranks sum at the beginning of a step.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "collectives/communicator.h"

namespace easyddl {

// The weight of a rank whose loss is a sum over its samples, not a mean. Gradients of such a loss
// are averaged over all ranks without weights.
constexpr double kUnweighted = -1;

// It is reduced with the first bucket of a step, so that uneven data, weights and a common stop
// cost no separate collective. Each entry is summed over the ranks.
struct ControlWord {
  static constexpr size_t kLength = 4;
  using Floats = std::array<float, kLength>;

  double weight = 0;      // of this rank's batch, such as its number of samples
  double active = 0;      // 1 if this rank has a batch
  double stop = 0;        // 1 if this rank asks all ranks to stop
  double unweighted = 0;  // 1 if its weight is kUnweighted

  Floats to_floats() const {
    return {static_cast<float>(weight), static_cast<float>(active), static_cast<float>(stop),
            static_cast<float>(unweighted)};
  }

  // Multiplies `sums` by `times`: the number of ranks if they are means, else 1.
  static ControlWord from_floats(const Floats& sums, double times) {
    return {sums[0] * times, sums[1] * times, sums[2] * times, sums[3] * times};
  }

  // The thresholds allow for rounding by the division of a mean.
  bool any_active() const { return active > 0.5; }
  bool all_active(int ranks) const { return active > ranks - 0.5; }
  bool any_stops() const { return stop > 0.5; }
  bool any_unweighted() const { return unweighted > 0.5; }
};

// Collective over the communicator. Returns the sum of all ranks' control words, which are reduced
// alone. `text` describes the collective.
ControlWord sum_of_control_words(Communicator& communicator, const ControlWord& mine,
                                 const std::string& text);

}  // namespace easyddl
