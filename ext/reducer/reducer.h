// Reduces the gradients of one optimizer over all ranks at every step.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
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
#include "collectives/row_gather.h"
#include "reducer/gpu_reduction.h"
#include "reducer/host_reduction.h"
#include "reducer/participant.h"
#include "reducer/reducer_group.h"
#include "reducer/reducer_plan.h"
#include "reducer/reducer_step.h"
#include "reducer/request.h"

namespace easyddl {

// Averages a list of gradients over all ranks at every step. The list is divided into buckets. A
// thread of the reducer reduces one bucket after the other, while the backward pass computes the
// next ones. All ranks submit each bucket once a step. The ranks negotiate nothing, because the
// order of the buckets is fixed.
//
// This class queues the submitted arrays, and decides which thread runs a step. HostReduction and
// GpuReduction run it; ReducerStep and GradientWeights hold its control word and weights.
//
// A rank that has no more batches joins: its thread takes part with zeros, without rows and weight,
// until all ranks have joined.
class Reducer : public Participant {
 public:
  // Collective. Creates a child of the group's communicator with buffers for the largest bucket.
  // All ranks must pass the same `what` (for errors), the same buckets, the same tables, which are
  // the variables of the sparse gradients, and the same `wire`, the type in which float32 gradients
  // are sent to other hosts.
  Reducer(ReducerGroup& group, std::string what, std::vector<Bucket> buckets,
          std::vector<Table> tables = {}, std::optional<DType> wire = std::nullopt);
  ~Reducer() override;

  // Submits the arrays of one or more whole buckets, beginning with bucket `first`. Threads may
  // submit buckets in any order; they are reduced in the order of their numbers. `weight` is the
  // weight of this rank's batch in the step, or kUnweighted. Only the weight of the first bucket is
  // used.
  void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) override;

  // The same for arrays in GPU memory: see ReducerEntryPoints. The calling thread runs the step
  // itself. Either all ranks submit arrays in GPU memory, or none does.
  std::string submit_on_gpu(size_t first, std::vector<Segment> arrays, const float* gpu_weight,
                            double weight, void* stream, const Done& done) override;

  // Submits the rows of all tables: see ReducerEntryPoints. `weight` is as in `submit`, and is used
  // only if there are no buckets.
  void submit_rows(std::vector<Rows> rows, double weight, AllocateRows allocate_rows,
                   Done done) override;

  void give_up(const std::string& why) override;

  // Makes the next step independent of the weights of the steps before, as the first one is. All
  // ranks call it after the same step. That step may still be ending on this rank.
  void forget_weights();

  // Returns the number of steps, and how many rows of each table all ranks have had in them.
  std::pair<uint64_t, std::vector<uint64_t>> gathered();

  // Fails the requests that have not begun, ends the thread, and releases the communicator. Gives
  // up an unfinished step.
  void close();

  // See `only_queues_on_gpu`.
  bool only_queues() override;

 private:
  // The memory that holds the arrays of all ranks. The ranks agree on it before the first step.
  enum class ArrayPlace { unknown, host, gpu };
  class AdvanceLock;

  void wake() override { arrived_.notify_one(); }
  bool is_on_gpu() const override { return place_ == ArrayPlace::gpu; }

  void enqueue(size_t first, Request request);
  std::string refusal(size_t first, ArrayPlace place) const;
  void run();
  std::string advance(std::unique_lock<std::mutex>& lock);
  void fail_waiting(std::unique_lock<std::mutex>& lock);
  void agree_on_place(ArrayPlace mine, std::optional<int> gpu);
  void run_joined_step();

  const ReducerPlan plan_;
  const std::unique_ptr<Communicator> communicator_;
  // Used by the thread that advances.
  ReducerStep step_;
  HostReduction on_host_;
  GpuReduction on_gpu_;

  // Guarded by the participant's mutex.
  std::condition_variable arrived_;           // for the reducer's thread
  std::vector<std::deque<Request>> waiting_;  // by their first bucket
  ArrayPlace place_ = ArrayPlace::unknown;
  // Whether a thread runs a step or agrees on the place. This is the reducer's thread, or one that
  // submits arrays in GPU memory. `waiting_to_advance_` counts the latter that wait.
  bool is_advancing_ = false;
  int waiting_to_advance_ = 0;
  std::condition_variable not_advancing_;
  std::thread thread_;
};

}  // namespace easyddl
