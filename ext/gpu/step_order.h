// The order in which the steps of all reducers use the GPUs. It is the same on all ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace easyddl {

// All reducers of a process share one communicator of NCCL, whose collectives must be queued in the
// same order on all ranks. That is the order in which the ranks' programs submit steps. A rank with
// arrays claims the next position in that order and sends it with its control word. A rank that has
// joined has no program to follow: the thread of each of its reducers learns the position of the
// step from the control word, and waits until all earlier steps have ended. The collectives of a
// step are queued between `begin` and `end`, and those of no other step are.
class GpuStepOrder {
 public:
  // A reducer, and its name in errors.
  struct Owner {
    int64_t number;
    const std::string& what;
  };

  // For a rank that has arrays: the position of the step that it is about to begin. Other threads'
  // claims wait until this step has ended. Throws if a step of another reducer is half-way, with
  // buckets that have not been submitted.
  uint64_t claim(const Owner& owner);

  // A position as it is sent, to be summed over the ranks that have arrays; and the position that
  // the sum stands for. Throws if the ranks have claimed different ones. `claimed` is null where
  // this rank has no arrays.
  static float to_float(uint64_t position);
  uint64_t agreed(double sum, double ranks, const uint64_t* claimed);

  // Returns once all earlier steps have ended here.
  void begin(const Owner& owner, uint64_t position);

  // Between two calls that submit buckets of one step.
  void pause(const Owner& owner);
  void resume(const Owner& owner);

  // Ends the step, or takes back the claim. Does nothing if the owner has neither.
  void end(const Owner& owner);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;     // the position of the step to begin next
  int64_t claimant_ = 0;  // reducers; 0 for none
  int64_t holder_ = 0;
  std::string holder_what_;
  bool is_paused_ = false;
};

}  // namespace easyddl
