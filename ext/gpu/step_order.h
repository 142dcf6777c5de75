// The order in which the steps of all reducers use the GPUs. It is the same on all ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace easyddl {

// All reducers of a process share one NCCL communicator, whose collectives must be queued in the
// same order on all ranks. This is the order in which the ranks' programs submit steps. A rank with
// arrays claims the next position in the order, and sends it with its control word. A rank that has
// joined submits nothing: the threads of its reducers learn the position of a step from the control
// word, and wait until all earlier steps have ended. The collectives of a step are queued between
// `begin` and `end`, during which no other step can queue any.
class GpuStepOrder {
 public:
  // A reducer, and its description for errors.
  struct Owner {
    int64_t number;
    const std::string& what;
  };

  // Claims the position of the next step, for a rank that has arrays. Claims of other threads wait
  // until this step has ended. Throws if a step of another reducer is unfinished, with buckets that
  // have not been submitted.
  uint64_t claim(const Owner& owner);

  // `to_float` converts a position to a number that is summed over the ranks that have arrays.
  // `agreed` returns the position for that sum, and throws if the ranks have claimed different
  // positions. `claimed` is null if this rank has no arrays.
  static float to_float(uint64_t position);
  uint64_t agreed(double sum, double ranks, const uint64_t* claimed);

  // Waits until all earlier steps have ended on this rank, and begins the step.
  void begin(const Owner& owner, uint64_t position);

  // Called between two submissions of buckets of one step.
  void pause(const Owner& owner);
  void resume(const Owner& owner);

  // Ends the step, or withdraws the claim. Does nothing if the owner has neither.
  void end(const Owner& owner);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;     // the position of the step to begin next
  int64_t claimant_ = 0;  // a reducer's number; 0 for none
  int64_t holder_ = 0;
  std::string holder_what_;
  bool is_paused_ = false;
};

}  // namespace easyddl
