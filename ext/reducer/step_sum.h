// A sum over all ranks at one place of a step, such as that of a normalization's statistics.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "algorithms/schedule.h"
#include "arrays/segment_list.h"
#include "levels/mpi_level.h"
#include "levels/shared_memory_level.h"
#include "reducer/join_state.h"
#include "reducer/registry.h"
#include "reducer/step_sum_on_gpu.h"
#include "reducer/step_sum_thread.h"
#include "runtime/world.h"

namespace easyddl {

// Adds up one float32 array over all ranks, once a step. A model may have hundreds: so each has no
// more of its own than a shared buffer, as long as what it carries, and a number in the
// tags of messages. They share a thread: see StepSumThread. They are independent of each other: a
// step may come to them in any order, or not at all.
//
// A step's data goes in chunks, one after the other. On one host a short chunk takes one phase of
// the shared memory: all write, and then all add up everything. A long one takes two: all write;
// each owner of a shard adds it up, over the hosts if there are several; and all copy the shards'
// sums.
//
// The control word travels behind the data: a rank that has no batch takes part with zeros until
// all have joined.
class StepSum : public Submittable {
 public:
  // Collective. All ranks must pass the same `what` (for errors) and `count`, the elements.
  StepSum(World& world, std::string what, size_t count);
  ~StepSum() override;
  StepSum(const StepSum&) = delete;
  StepSum& operator=(const StepSum&) = delete;

  int64_t number() const { return registration_.number(); }

  // Hands in this rank's array, and where the sum goes. `first` must be 0; `weight` does not
  // matter.
  void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) override;
  // The same for an array on a GPU, by way of the host's memory. Returns when the sum's copy to the
  // GPU is queued on `stream`: see StepSumOnGpu.
  std::string submit_on_gpu(size_t first, std::vector<Segment> arrays, const float* gpu_weight,
                            double weight, void* stream, const Done& done) override;
  // It has no tables.
  void submit_rows(std::vector<Rows> rows, double weight, MakeRoom make_room, Done done) override;

  // As those of a Reducer.
  void join();
  bool wait_for_all(std::chrono::milliseconds time);
  void give_up(const std::string& why) override;
  void ask_to_stop(bool stop);
  std::optional<std::chrono::nanoseconds> waited();
  JoinSummary join_summary();
  void forget();

  // Fails what is in progress, on all ranks, and gives back the memory.
  void close();

  // For StepSumThread, which holds its mutex.

  // What is done, to be called without the mutex.
  using Finished = std::vector<std::pair<Done, std::string>>;

  // Goes as far as it can without waiting. True if it has got anywhere.
  bool advance(Finished& finished);
  bool is_under_way() const { return state_ != State::idle; }
  // Whether it is in progress without an array of this rank's.
  bool has_joined_step() const { return is_under_way() && !current_ && failure_.empty(); }
  bool is_between_hosts() const { return state_ == State::between_hosts; }
  // Fails if the other ranks cannot come. To be called now and then while it is in progress.
  void check(Finished& finished);

 private:
  enum class State {
    idle,
    gathering,      // until all members of the host have written the chunk
    between_hosts,  // until its shard has crossed the hosts
    spreading,      // until all owners have written their shards' sums
  };
  struct PendingArray {
    std::vector<Segment> arrays;
    Done done;
    std::chrono::steady_clock::time_point handed_in;
  };
  struct ByteRange {
    size_t begin, end;  // bytes
  };

  void begin_step();
  void begin_chunk();
  void end_gathering(Finished& finished);
  bool end_between_hosts();
  void end_chunk(Finished& finished);
  void end_step(Finished& finished);
  void end_phase();
  void reduce_shard();
  void reduce_across_hosts();
  void copy_shards();
  ByteRange chunk() const;
  ByteRange shard(int owner) const;
  int owners() const;
  bool is_at_once() const;
  const void* const* sources(size_t offset);
  void fail(const std::string& why, Finished& finished);
  std::string text() const;
  void trace() const;

  World& world_;
  const Topology& topology_;
  StepSumThread& all_;
  const std::string what_;
  const size_t bytes_;  // of the array
  const size_t id_;     // its number in the exit protocol
  std::unique_ptr<SharedMemoryLevel> shared_memory_;
  MpiLevel remote_;
  std::unique_ptr<Schedule> schedule_;
  StepSumOnGpu gpu_;
  Registration registration_;

  // Guarded by the mutex of StepSumThread.
  std::condition_variable all_joined_;
  std::deque<PendingArray> waiting_;
  std::string failure_;  // why nothing travels any more
  JoinState joined_;
  std::chrono::nanoseconds waited_{0};
  uint64_t step_ = 0, number_of_step_ = 0;  // the latter as the exit protocol counts
  std::chrono::steady_clock::time_point since_;
  int64_t begin_ = 0;  // for the timeline
  bool is_watched_ = false;
  // Of the step in progress.
  State state_ = State::idle;
  std::optional<PendingArray> current_;  // none if this rank has no batch
  ControlWord mine_;
  ControlWord::Floats floats_{};
  std::vector<uint8_t> zeros_;
  std::unique_ptr<SegmentList> data_;
  size_t at_ = 0;       // where the chunk begins
  uint32_t phase_ = 0;  // in which it was written
  std::vector<const void*> sources_;
};

}  // namespace easyddl
