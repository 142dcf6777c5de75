// A sum over all ranks within a step, such as that of the statistics of a normalization layer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/segment_list.h"
#include "reducer/control_word.h"
#include "reducer/nonblocking_sum.h"
#include "reducer/participant.h"
#include "reducer/reducer_group.h"
#include "reducer/step_sum_on_gpu.h"
#include "reducer/step_sum_thread.h"
#include "runtime/world.h"

namespace easyddl {

// Sums one float32 array over all ranks, once a step. A model may have hundreds of such sums, so
// each has only a shared buffer, as long as its array, and its own message tag. All sums share a
// thread: see StepSumThread. They are independent of each other: a step may use them in any order,
// or not at all.
//
// The control word follows the data. A rank that has no batch takes part with zeros until all ranks
// have joined.
class StepSum : public Participant {
 public:
  // Collective. All ranks must pass the same `what` (for errors) and `count`, the number of
  // elements. The sum breaks when the group's communicator breaks.
  StepSum(ReducerGroup& group, std::string what, size_t count);
  ~StepSum() override;

  // Submits this rank's array, and the memory for the sum. `first` must be 0; `weight` is ignored.
  void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) override;
  // The same for an array in GPU memory, which is copied through host memory. Returns when the copy
  // of the sum to the GPU is queued on `stream`: see StepSumOnGpu.
  std::string submit_on_gpu(size_t first, std::vector<Segment> arrays, const float* gpu_weight,
                            double weight, void* stream, const Done& done) override;
  // Fails, because a sum has no tables.
  void submit_rows(std::vector<Rows> rows, double weight, AllocateRows allocate_rows,
                   Done done) override;

  void give_up(const std::string& why) override;

  // Fails a step in progress on all ranks, and frees the memory.
  void close();

  // Called by StepSumThread with its mutex held.

  // Advances as far as possible without waiting. Returns whether it has advanced.
  bool advance(Finished& finished);
  bool is_in_progress() const { return sum_ != nullptr && sum_->is_in_progress(); }
  // Returns whether a step is in progress without an array of this rank.
  bool has_joined_step() const { return is_in_progress() && !current_ && state().failure.empty(); }
  bool is_between_hosts() const { return sum_ != nullptr && sum_->is_between_hosts(); }
  // Makes the sum fail if the other ranks cannot take part. Called from time to time while it is in
  // progress.
  void check(Finished& finished);

 private:
  struct PendingArray {
    std::vector<Segment> arrays;
    Done done;
    std::chrono::steady_clock::time_point submitted_at;
  };

  void wake() override { thread_.wake_own(); }
  bool is_on_gpu() const override { return gpu_.is_used(); }

  void begin_step();
  void end_step(Finished& finished);
  void fail(const std::string& why, Finished& finished);
  void end_wait();
  std::string text() const;
  void trace() const;

  World& world_;
  StepSumThread& thread_;
  const size_t bytes_;  // of the array
  const size_t id_;     // its number in the exit protocol and the stall inspector
  std::unique_ptr<NonblockingSum> sum_;
  StepSumOnGpu gpu_;

  // Guarded by the mutex of StepSumThread.
  std::deque<PendingArray> waiting_;
  uint64_t step_ = 0, number_of_step_ = 0;  // the latter as counted by the exit protocol
  std::chrono::steady_clock::time_point since_;
  int64_t begin_ = 0;  // for the timeline
  bool is_watched_ = false;
  // State of the step in progress.
  std::optional<PendingArray> current_;  // none if this rank has no batch
  ControlWord::Floats floats_{};
  std::vector<uint8_t> zeros_;
};

}  // namespace easyddl
