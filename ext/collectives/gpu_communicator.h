// Collectives on GPUs: the NCCL communicators, the streams and the memory that all reducers share.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "algorithms/gpu_algorithm.h"
#include "arrays/segment_list.h"
#include "collectives/communicator.h"
#include "collectives/gpu_peer_info.h"
#include "collectives/nccl_connections.h"
#include "common/wait.h"
#include "gpu/completion_monitor.h"
#include "gpu/memory.h"
#include "gpu/step_order.h"
#include "runtime/topology.h"
#include "runtime/world.h"

namespace easyddl {

// Arrays of one dtype that are summed together, by their bytes.
struct GpuLoad {
  DType dtype;
  std::vector<size_t> bytes;
  std::optional<DType> wire;  // in which float32 is sent to other hosts

  size_t total() const;
};

// A process has one, however many reducers it has. It has two streams, and an event for each step
// in progress. It lives as long as the world, because all ranks together must destroy an NCCL
// communicator, and they close reducers at different times.
//
// All work is queued on its own stream, in the same order on all ranks: a thread that calls
// `prepare` or queues a step holds a position in `step_order`.
class GpuCommunicator {
 public:
  explicit GpuCommunicator(World& world);
  ~GpuCommunicator();
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  GpuStepOrder& step_order() { return step_order_; }
  GpuCompletionMonitor& monitor() { return monitor_; }

  // Collective over the communicator. Prepares reductions of these loads, so that no later step
  // allocates memory or connects NCCL. `gpu` is the GPU that holds this rank's arrays; a rank
  // without arrays takes the GPU of its local rank. If any rank cannot take part, all ranks throw
  // an Error that names the rank and the reason.
  void prepare(Communicator& communicator, const std::vector<GpuLoad>& loads,
               std::optional<int> gpu);

  // Returns the GPU of this rank, once it is prepared.
  int gpu() const { return gpu_; }

  // Returns the algorithm for a load: the user's choice, or the cheapest. The same on all ranks.
  GpuAlgorithm algorithm_of(const GpuLoad& load) const;

  // The GPU's context must be current in all calls below.
  CudaStream stream() const { return stream_->get(); }

  // Makes the engine's stream wait for the work that the framework has queued on its stream so far,
  // such as the computation of the arrays.
  void wait_for_stream(CudaStream framework);

  // Returns a weight from GPU memory, once the framework's stream has computed it.
  float read_weight(const float* weight, CudaStream framework);

  // Queues the sum of a load over all ranks, by any algorithm but `host`. This rank's elements are
  // multiplied by `factor`. With `nccl` it returns at once; with `hierarchical` it returns when the
  // data of other hosts has arrived. `context` is that of a collective with `is_external`.
  void reduce(CollectiveContext& context, const std::vector<Segment>& arrays, const GpuLoad& load,
              double factor);

  // Copies for the algorithm `host`: a load to host memory, one array after the other, and back.
  uint8_t* copy_to_host(const std::vector<Segment>& arrays, const Idle& idle);
  void copy_to_gpu(const std::vector<Segment>& arrays);

  // Returns arrays of zeros for a load of a rank that has no batch.
  std::vector<Segment> zeros(const std::vector<size_t>& bytes);

 private:
  NcclNeeds needs_of(const std::vector<GpuLoad>& loads) const;
  int gpu_or_default(std::optional<int> gpu) const;
  void set_up(int gpu);
  GpuPeerInfo peer_info(const NcclNeeds& needs, std::optional<int> gpu) const;
  void warm_up(Communicator& communicator, const std::vector<GpuLoad>& loads);
  void reduce_in_levels(CollectiveContext& context, const std::vector<Segment>& arrays,
                        const GpuLoad& load, double factor);
  void reduce_shard_across_hosts(CollectiveContext& context, uint8_t* shard, size_t bytes,
                                 const GpuLoad& load, double factor);
  void wait(const Idle& idle);
  size_t shard_bytes(size_t bytes, DType dtype) const;
  void poll_gpu(const std::function<bool()>& ready, const Idle& idle);

  static constexpr size_t kAhead = 8;  // chunks that are copied ahead

  const Topology& topology_;
  const GpuTopology gpu_topology_;
  const std::optional<GpuAlgorithm> requested_algorithm_;
  const bool mpi_takes_gpu_memory_;
  int gpu_ = -1;
  std::optional<GpuStream> stream_, back_;  // `back_` is for copies from the host
  std::optional<GpuEvent> entered_, done_, returned_;
  std::vector<GpuEvent> fetched_;
  NcclConnections nccl_;
  GpuBuffer scratch_;
  PinnedBuffer pinned_, weight_;
  GpuStepOrder step_order_;
  GpuCompletionMonitor monitor_;  // last, so that it is destroyed first
};

}  // namespace easyddl
