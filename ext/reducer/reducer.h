// The gradients of one optimizer, reduced over all ranks at every step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "collectives/communicator.h"
#include "collectives/gpu_communicator.h"
#include "collectives/row_gather.h"
#include "reducer/control_word.h"
#include "reducer/join_state.h"
#include "reducer/registry.h"

namespace easyddl {

// Arrays of one dtype that are reduced together.
struct Bucket {
  DType dtype;
  std::vector<size_t> bytes;  // of each array
};

// Averages a list of gradients over all ranks at every step. The list is cut into buckets. A thread
// of the reducer reduces one bucket after the other, while the backward pass computes the next
// ones. All ranks submit each bucket once a step. Nothing is negotiated, because the order of the
// buckets is fixed.
//
// The gradient of a rank is that of a mean over its batch. For the gradient of the mean over all
// batches, the mean over the ranks is weighted by what each rank's mean was divided by. Each rank
// multiplies its gradients by its weight over the mean weight of the step before, which all ranks
// know. The control word of the step brings the sum of the weights, by which the result is divided.
// Where all batches are alike, both factors are 1, and nothing is multiplied.
//
// Sparse gradients are not summed: the rows of all ranks are gathered, each rank's multiplied so
// that their sum is the weighted mean. An optimizer that applies rows one by one then does what it
// does on one process. Rows are gathered after the last bucket, as one more bucket.
//
// A rank that has no more batches joins: its thread takes part with zeros, no rows and no weight,
// until all ranks have joined.
class Reducer : public Submittable {
 public:
  // Collective: makes a communicator of its own, as large as the largest bucket. All ranks must
  // pass the same `what` (for errors), the same buckets, the same `op`: the weighted mean, or the
  // sum, which knows no weights; and the same tables, of which sparse gradients hold rows.
  Reducer(World& world, std::string what, std::vector<Bucket> buckets, Op op = Op::mean,
          std::vector<Table> tables = {});
  ~Reducer() override;
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // By this number other libraries of the process find the reducer.
  int64_t number() const { return registration_.number(); }

  // Submits the arrays of one or more whole buckets, from bucket `first` on. Threads may come in
  // any order: buckets are reduced in theirs. `weight` is that of this rank's batch in the step, or
  // kUnweighted; that of the first bucket counts.
  void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) override;

  // The same for arrays on a GPU: see ReducerEntryPoints. The thread that comes here takes the step
  // itself. Either all ranks submit arrays on GPUs, or none does.
  std::string submit_on_gpu(size_t first, std::vector<Segment> arrays, const float* gpu_weight,
                            double weight, void* stream, const Done& done) override;

  // Submits the rows of all tables: see ReducerEntryPoints. `weight` is that of `submit`, and
  // counts where there are no buckets.
  void submit_rows(std::vector<Rows> rows, double weight, MakeRoom make_room, Done done) override;

  // From now on this rank has no batches. Steps that it has submitted are reduced first.
  void join();

  // Waits until all ranks have joined, and so none is joined any more. False if they have not
  // after some time.
  bool wait_for_all(std::chrono::milliseconds time);

  void give_up(const std::string& why) override;

  // Whether this rank asks all ranks to stop, from its next step on.
  void ask_to_stop(bool stop);

  // For how long steps have stood still for it: from when the last array of a step was handed in
  // until all results were there. Nothing where they lie on GPUs: the host stands still for none.
  std::optional<std::chrono::nanoseconds> waited();

  // What this rank has learned from the control words, since `forget`.
  JoinSummary join_summary();
  void forget();

  // How many steps there were, and how many rows of each table all ranks have had in them.
  std::pair<uint64_t, std::vector<uint64_t>> gathered();

  // Fails what has been handed in and not yet begun, ends the thread, and gives back the
  // communicator. Gives up a step that remains half-way.
  void close();

  // See `only_queues_on_gpu`.
  bool only_queues() override;

 private:
  struct Request {
    std::vector<Segment> arrays;
    double weight;
    Done done;
    int64_t handed_in;  // when, if that is traced
    std::vector<Rows> rows;
    MakeRoom make_room;
  };
  // Where a step on a GPU is read, and what waits for it.
  struct GpuSource {
    const float* weight;  // or null
    CudaStream stream;
  };

  // Where the arrays of all ranks lie: that is learnt before the first step.
  enum class ArrayPlace { unknown, host, gpu };

  // With that of the rows, which is the last.
  size_t num_buckets() const { return buckets_.size() + (rows_.has_tables() ? 1 : 0); }
  bool are_rows_next() const { return next_ == buckets_.size(); }

  void hand_in(size_t first, Request request);
  void run();
  std::string advance(std::unique_lock<std::mutex>& lock);
  void fail_waiting(std::unique_lock<std::mutex>& lock);
  void agree_on_place(ArrayPlace mine, std::optional<int> gpu);
  std::string take(Request& request);
  std::string take_joined_step();
  void reduce(std::vector<Segment> arrays, int64_t handed_in);
  void gather_rows(const Request* request);
  void begin_step(double weight, bool active);
  void agree_on_usual_weight();
  void check(const std::vector<Segment>& arrays) const;
  void weigh(std::vector<Segment>& arrays) const;
  void divide(const std::vector<Segment>& arrays) const;
  void travel(std::vector<Segment> arrays, int64_t handed_in);
  ControlWord exchange_control(const std::string& text);
  void take_in(const ControlWord& all);
  void end_bucket();
  std::string text_of_bucket() const;
  // In exchange_on_gpu.cpp.
  class Drive;
  void require_on_gpu(size_t first, const std::vector<Segment>& arrays, int gpu, CudaStream stream);
  void fail(const std::string& failure);
  void prepare_gpu(const std::vector<int64_t>& step_order, std::optional<int> gpu,
                   const uint64_t* claimed);
  GpuLoad load_of(size_t bucket) const;
  std::string refusal(size_t first, ArrayPlace place) const;
  void take_on_gpu(Request request, const GpuSource& there);
  void take_joined_step_on_gpu();
  bool begin_step_on_gpu(double weight, const uint64_t* claimed);
  void reduce_on_gpu(const std::vector<Segment>& arrays);
  void reduce_by_host(const std::vector<Segment>& arrays, const std::string& text);
  GpuStepOrder::Owner owner() const { return {number(), what_}; }
  std::function<void()> bucket_trace(size_t bytes, int64_t handed_in, int64_t begun) const;

  const std::string what_;
  const std::vector<Bucket> buckets_;
  const Op op_;
  RowGather rows_;
  std::unique_ptr<Communicator> owned_communicator_;
  Communicator& communicator_;
  Registration registration_;
  std::mutex mutex_;
  std::condition_variable came_, all_joined_;
  std::vector<std::deque<Request>> waiting_;  // by their first bucket
  size_t next_ = 0;                           // the bucket to reduce next
  uint64_t step_ = 0;
  JoinState joined_;
  std::chrono::steady_clock::time_point last_handed_in_;
  std::chrono::nanoseconds waited_{0};
  std::string failure_;  // why nothing travels any more
  ArrayPlace place_ = ArrayPlace::unknown;
  // Whether a thread takes a step or agrees on the place: this one's, or one that hands in arrays
  // on a GPU, for which so many wait.
  bool is_driven_ = false;
  int want_to_drive_ = 0;
  std::condition_variable undriven_;
  GpuCommunicator* gpu_ = nullptr;  // the world's, if the arrays lie on GPUs
  // Of the step in progress, the thread's own.
  ControlWord mine_;
  double usual_weight_ = 0;       // all ranks' mean in the step before; 0 if there was none
  double share_ = 1;              // by what this rank's gradients are multiplied
  double divisor_ = 1;            // by what the mean over the ranks is divided
  bool step_has_batches_ = true;  // whether any rank has one
  std::thread thread_;
};

// How many steps of gradients this process has exchanged.
uint64_t reduced_steps();

}  // namespace easyddl
