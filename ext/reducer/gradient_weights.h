// The factors that turn the mean over the ranks into a weighted mean of gradients.
#pragma once

#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "reducer/control_word.h"

namespace easyddl {

// The gradient of a rank is a mean over its batch. To get the gradient of the mean over all
// batches, the ranks' gradients must be weighted by the divisors of their means. Each rank
// multiplies its gradients by its share, which is its weight divided by the mean weight of the
// previous step, which all ranks know. The step's control word gives the sum of the weights, and so
// the divisor of the result. If all batches have the same weight, both factors are 1, and nothing
// is multiplied.
class GradientWeights {
 public:
  explicit GradientWeights(int ranks) : ranks_(ranks) {}

  // Returns whether the ranks must sum their weights before the step. This is so in the first step,
  // because multiplication by the weights themselves could make a 16-bit gradient overflow.
  bool needs_first_weights() const { return usual_weight_ == 0; }
  void set_first_weights(const ControlWord& all);
  // Makes the next step a first step, whose result does not depend on the steps before.
  void forget() { usual_weight_ = 0; }

  // Begins a step with this rank's control word.
  void begin_step(const ControlWord& mine);

  // Computes the divisor from the sum of all ranks' control words. At least one rank has a batch.
  void update(const ControlWord& all);

  double share() const { return share_; }
  double divisor() const { return divisor_; }

  // Multiplies the arrays by the share. Afterwards they are in their outputs.
  void multiply_by_share(std::vector<Segment>& arrays, DType dtype) const;
  // Divides the results.
  void divide(const std::vector<Segment>& arrays, DType dtype) const;

 private:
  const int ranks_;
  double usual_weight_ = 0;  // the mean over all ranks in the step before; 0 if there was none
  double share_ = 1;
  double divisor_ = 1;
};

}  // namespace easyddl
