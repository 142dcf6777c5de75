#include "gpu/step_order.h"

#include <cmath>

#include "common/check.h"

namespace easyddl {
namespace {

// Positions are sent modulo this, so that a float32 holds the sum over 16384 ranks.
constexpr uint64_t kCycle = 1024;

[[noreturn]] void fail_for_order() {
  throw Error(
      "The ranks do not reduce gradients on GPUs in the same order. All ranks must run the steps "
      "of "
      "all their models and optimizers in the same order, and from one thread at a time.");
}

}  // namespace

uint64_t GpuStepOrder::claim(const Owner& owner) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return claimant_ == 0 && (holder_ == 0 || is_paused_); });
  if (holder_ != 0) {
    throw Error("A step of " + owner.what + " begins while a step of " + holder_what_ +
                " is unfinished: only some of its gradients have been submitted. On GPUs the steps "
                "of two reducers must not be mixed.");
  }
  claimant_ = owner.number;
  return next_;
}

float GpuStepOrder::to_float(uint64_t position) { return static_cast<float>(position % kCycle); }

uint64_t GpuStepOrder::agreed(double sum, double ranks, const uint64_t* claimed) {
  const double mean = sum / ranks, rounded = std::round(mean);
  if (std::abs(mean - rounded) > 1e-6) fail_for_order();
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t ahead = (static_cast<uint64_t>(rounded) + kCycle - next_ % kCycle) % kCycle;
  if (ahead > kCycle / 2) fail_for_order();  // that step has already ended on this rank
  if (claimed != nullptr && *claimed != next_ + ahead) fail_for_order();
  return next_ + ahead;
}

void GpuStepOrder::begin(const Owner& owner, uint64_t position) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [&] { return next_ > position || (next_ == position && holder_ == 0); });
  if (next_ > position) fail_for_order();
  holder_ = owner.number;
  holder_what_ = owner.what;
  is_paused_ = false;
}

void GpuStepOrder::pause(const Owner& owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (holder_ != owner.number) return;
  is_paused_ = true;
  if (claimant_ == owner.number) claimant_ = 0;
  changed_.notify_all();
}

void GpuStepOrder::resume(const Owner& owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (holder_ == owner.number) is_paused_ = false;
}

void GpuStepOrder::end(const Owner& owner) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (claimant_ == owner.number) claimant_ = 0;
  if (holder_ == owner.number) {
    holder_ = 0;
    is_paused_ = false;
    ++next_;
  }
  changed_.notify_all();
}

}  // namespace easyddl
