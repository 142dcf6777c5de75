// Reduces gradients in GPU memory.
//
// The thread that submits arrays also queues their reduction, as in PyTorch's
// DistributedDataParallel and Horovod: the engine's stream waits for an event on the framework's
// stream, NCCL is queued on the engine's stream, and the framework's stream waits for an event
// after it. No stream ever waits for work that a host thread has not queued yet. Streams may share
// a hardware queue, in which that work would never be reached, and driver calls may wait for
// streams unexpectedly. So if an algorithm involves the hosts, the thread waits for them, and then
// queues the copies of the results.
//
// The hosts reduce the control word before the data. Then all ranks know whether there is a step to
// queue at all, its position in the step order, and the factor for NCCL. The thread waits for the
// other ranks only for as long as a small allreduce takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays/segment_list.h"
#include "collectives/communicator.h"
#include "collectives/gpu_communicator.h"
#include "reducer/reducer_group.h"
#include "reducer/reducer_plan.h"
#include "reducer/reducer_step.h"
#include "reducer/request.h"

namespace easyddl {

// The weight and the stream of a step whose arrays are in GPU memory.
struct GpuSource {
  const float* weight;  // on the GPU; null if the request has the weight
  CudaStream stream;
};

// Reduces the buckets of a reducer's steps, one after the other.
class GpuReduction {
 public:
  GpuReduction(const ReducerPlan& plan, Communicator& communicator, ReducerStep& step,
               ReducerGroup& group, int64_t reducer)
      : plan_(plan), communicator_(communicator), step_(step), group_(group), reducer_(reducer) {}

  // Claims the next position in the step order.
  uint64_t claim() { return group_.gpu().step_order().claim(owner()); }

  // Collective over the communicator. Prepares the GPUs for the buckets. `positions` are the
  // positions that the ranks with arrays have claimed; `claimed` is this rank's position, or null
  // if it has no arrays.
  void prepare(const std::vector<int64_t>& positions, std::optional<int> gpu,
               const uint64_t* claimed);
  bool is_prepared() const { return gpu_ != nullptr; }

  // Throws an Error if these arrays cannot be submitted. Nothing has begun then.
  void require(size_t first, const std::vector<Segment>& arrays, int gpu, CudaStream stream) const;

  // Queues the reduction of the arrays of whole buckets, beginning with the next bucket.
  void run(Request request, const GpuSource& source);

  // Takes part with zeros in a step of the other ranks, or learns that all ranks have joined.
  void run_joined_step();

  // Returns whether all buckets are reduced by NCCL alone, without the hosts.
  bool only_queues() const;

  // Releases the position of a failed step in the step order.
  void leave_step_order() { group_.gpu().step_order().end(owner()); }

  // Waits until nothing of the reducer is in progress.
  void close();

 private:
  GpuStepOrder::Owner owner() const { return {reducer_, plan_.what}; }
  GpuLoad load_of(size_t bucket) const;
  bool begin_step(double weight, const uint64_t* claimed);
  void reduce(const std::vector<Segment>& arrays);
  void reduce_by_host(const std::vector<Segment>& arrays, const std::string& text);

  const ReducerPlan& plan_;
  Communicator& communicator_;
  ReducerStep& step_;
  ReducerGroup& group_;
  const int64_t reducer_;           // its number
  GpuCommunicator* gpu_ = nullptr;  // the group's, once it is prepared
};

// Returns the GPU of the first array that is not empty, else that of the current context.
int gpu_of_first(const std::vector<Segment>& arrays);

}  // namespace easyddl
