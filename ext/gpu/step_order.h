// In which order the steps of all reducers use the GPUs: the same on all ranks.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace easyddl {

// All reducers of a process share one communicator of NCCL, whose collectives must be queued in
// one order on all ranks. That is the order in which the ranks' programs hand in steps: a rank
// that has arrays claims the next turn, and tells the others of it with its control word. A rank
// that has joined has no program to follow. There each reducer has a thread, which learns its
// step's turn from the control word and waits until the turns before have ended. So a step's
// collectives lie between `begin` and `end`, and no other's lie between them.
class GpuStepOrder {
 public:
  // a reducer, and what it is called in errors.
  struct Owner {
    int64_t number;
    const std::string& what;
  };

  // For a rank that has arrays: the turn of the step that it is about to begin. Other threads'
  // claims wait until this step has ended. Throws if a step of another reducer is half-way, with
  // buckets that have not been handed in.
  uint64_t claim(const Owner& owner);

  // A turn as ranks tell it, to be summed over those that have arrays, and the turn that the sum
  // stands for. Throws if the ranks have claimed different ones. `claimed` is null where this rank
  // has no arrays.
  static float to_float(uint64_t position);
  uint64_t agreed(double sum, double ranks, const uint64_t* claimed);

  // Returns once all turns before have ended here.
  void begin(const Owner& owner, uint64_t position);

  // Between two calls that hand in buckets of one step.
  void pause(const Owner& owner);
  void resume(const Owner& owner);

  // Ends the step, or takes back the claim. Does nothing if the owner has neither.
  void end(const Owner& owner);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t next_ = 0;     // the turn to begin next
  int64_t claimant_ = 0;  // reducers; 0 for none
  int64_t holder_ = 0;
  std::string holder_what_;
  bool is_paused_ = false;
};

}  // namespace easyddl
