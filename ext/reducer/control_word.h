// What a rank says of itself at the head of a step, and what all ranks say together.
#pragma once

#include <array>

namespace easyddl {

// The weight of a rank whose gradient is that of a sum over its samples, not of a mean: such
// gradients are averaged over all ranks as they are.
constexpr double kUnweighted = -1;

// It travels with the first bucket of a step, so that uneven data, weights and stopping together
// cost no collective of their own. Each entry is summed over the ranks.
struct ControlWord {
  static constexpr size_t kLength = 4;
  using Floats = std::array<float, kLength>;

  double weight = 0;      // of this rank's batch, such as its number of samples
  double active = 0;      // 1 if it has a batch
  double stop = 0;        // 1 if it asks all to stop
  double unweighted = 0;  // 1 if it has no weight: see kUnweighted

  static ControlWord of(double weight, bool active, bool stop) {
    const bool unweighted = active && weight < 0;
    const double mine = !active ? 0 : unweighted ? 1 : weight;
    return {mine, active ? 1. : 0., stop ? 1. : 0., unweighted ? 1. : 0.};
  }

  Floats to_floats() const {
    return {static_cast<float>(weight), static_cast<float>(active), static_cast<float>(stop),
            static_cast<float>(unweighted)};
  }

  // `times`: by what the sums have been divided.
  static ControlWord from_floats(const Floats& sums, double times) {
    return {sums[0] * times, sums[1] * times, sums[2] * times, sums[3] * times};
  }

  // Counts may be rounded by the division.
  bool any_active() const { return active > 0.5; }
  bool all_active(int ranks) const { return active > ranks - 0.5; }
  bool any_stops() const { return stop > 0.5; }
  bool any_unweighted() const { return unweighted > 0.5; }
};

}  // namespace easyddl
