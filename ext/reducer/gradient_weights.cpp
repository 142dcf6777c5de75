#include "reducer/gradient_weights.h"

#include "arrays/arithmetic.h"

namespace easyddl {

void GradientWeights::set_first_weights(const ControlWord& all) {
  if (all.any_active() && all.weight > 0) usual_weight_ = all.weight / all.active;
}

void GradientWeights::begin_step(const ControlWord& mine) {
  share_ = 1;
  // If the usual weight is 0, no rank has a weight.
  if (mine.active != 0 && mine.unweighted == 0) {
    share_ = usual_weight_ > 0 ? mine.weight / usual_weight_ : 0;
  }
}

void GradientWeights::update(const ControlWord& all) {
  divisor_ = 1;
  if (all.weight <= 0) return;
  if (!all.any_unweighted()) divisor_ = all.weight / ranks_ / usual_weight_;
  usual_weight_ = all.weight / all.active;
}

void GradientWeights::multiply_by_share(std::vector<Segment>& arrays, DType dtype) const {
  if (share_ == 1) return;
  for (Segment& array : arrays) {
    scale(array.out, array.in, array.bytes / size_of(dtype), dtype, share_);
    array.in = array.out;
  }
}

void GradientWeights::divide(const std::vector<Segment>& arrays, DType dtype) const {
  if (divisor_ == 1) return;
  for (const Segment& array : arrays) {
    scale(array.out, array.out, array.bytes / size_of(dtype), dtype, 1 / divisor_);
  }
}

}  // namespace easyddl
