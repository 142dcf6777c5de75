// Collectives on GPUs: the communicators of NCCL, the streams and the memory that all reducers
// share.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/gpu_algorithm.h"
#include "arrays/segment_list.h"
#include "collectives/gpu_peer_info.h"
#include "common/wait.h"
#include "gpu/completion_monitor.h"
#include "gpu/memory.h"
#include "gpu/step_order.h"
#include "levels/nccl_level.h"
#include "runtime/topology.h"

namespace easyddl {

class Communicator;
class World;

// What is to travel together: arrays of one dtype, by their bytes.
struct GpuLoad {
  DType dtype;
  std::vector<size_t> bytes;
  Reduction reduction;  // its factor does not count

  size_t total() const;
};

// There is one in a process, however many reducers there are: one communicator of NCCL among all
// ranks and one among those of a host, two streams, and as many events as are in progress. It lives
// as long as the world, because ending a communicator of NCCL in order takes all ranks, which close
// reducers at different times.
//
// All work is queued on a stream of its own, in the same order on all ranks: whoever calls
// `prepare` or queues a step holds its position in `step_order`.
class GpuCommunicator {
 public:
  // That of a world. Made at the first call.
  static GpuCommunicator& of(World& world);

  explicit GpuCommunicator(World& world);
  ~GpuCommunicator();
  GpuCommunicator(const GpuCommunicator&) = delete;
  GpuCommunicator& operator=(const GpuCommunicator&) = delete;

  GpuStepOrder& step_order() { return step_order_; }
  GpuCompletionMonitor& watch() { return watch_; }

  // Collective over the communicator. Prepares such loads: no later step allocates memory, and NCCL
  // makes no connection. `gpu` is the one on which this rank's arrays lie; a rank that has none
  // takes one by its place on the host. Throws on all ranks if any of them cannot take part, and
  // says which and why.
  void prepare(Communicator& communicator, const std::vector<GpuLoad>& loads,
               std::optional<int> gpu);

  // The GPU of this rank, once it is prepared.
  int gpu() const { return gpu_; }

  // The algorithm for a load: the one that the user has chosen, or the cheapest. The same on all
  // ranks.
  GpuAlgorithm algorithm_of(const GpuLoad& load) const;

  // The GPU's context is current in all that follows.
  CudaStream stream() const { return stream_->get(); }

  // What is queued from now on waits for what the framework's stream was given before: arrays are
  // there then.
  void follow(CudaStream framework);

  // The same for a weight that lies on the GPU, which is read: returns once it is there.
  float read(const float* weight, CudaStream framework);

  // Queues the reduction of a load over all ranks, by any algorithm but `host`. By NCCL it returns
  // at once; by the hierarchy when the data of other hosts has come. To be called within the
  // communicator's `take_part`.
  void reduce(Communicator& communicator, const std::vector<Segment>& arrays, DType dtype,
              GpuAlgorithm algorithm, const Reduction& reduction, const Idle& idle);

  // For the algorithm `host`: copies a load to the host's memory, one array after the other; and
  // back.
  uint8_t* fetch(const std::vector<Segment>& arrays, const Idle& idle);
  void bring_back(const std::vector<Segment>& arrays);

  // Arrays of a load that hold zeros, for a rank that has none.
  std::vector<Segment> zeros(const std::vector<size_t>& bytes);

 private:
  struct NcclIds;
  struct NcclNeeds;

  NcclNeeds needs_of(const std::vector<GpuLoad>& loads) const;
  int gpu_or_mine(std::optional<int> gpu) const;
  void set_up(int gpu);
  GpuPeerInfo peer_info(const NcclNeeds& needs, int gpu) const;
  std::vector<NcclIds> make_ids(Communicator& communicator, const NcclNeeds& missing) const;
  void connect(Communicator& communicator, const NcclNeeds& missing);
  void warm_up(Communicator& communicator, const std::vector<GpuLoad>& loads);
  void reduce_in_levels(Communicator& communicator, const std::vector<Segment>& arrays, DType dtype,
                        const Reduction& reduction, const Idle& idle);
  void reduce_across_hosts(Communicator& communicator, uint8_t* shard, size_t bytes, DType dtype,
                           const Reduction& reduction, const Idle& idle);
  void wait(const Idle& idle);
  void check();
  size_t shard_bytes(size_t bytes, DType dtype) const;
  void poll_gpu(const std::function<bool()>& ready, const Idle& idle);

  static constexpr size_t kAhead = 8;  // chunks that are copied ahead

  const Topology& topology_;
  const GpuTopology gpu_topology_;
  const std::optional<GpuAlgorithm> wish_;
  const bool mpi_takes_gpu_memory_;
  int gpu_ = -1;
  std::optional<GpuStream> stream_, back_;  // the other for what returns from the host
  std::optional<GpuEvent> entered_, done_, returned_;
  std::vector<GpuEvent> fetched_;
  std::mutex communicators_mutex_;  // the watch asks them how they are
  std::unique_ptr<NcclLevel> world_, host_;
  bool hosts_are_connected_ = false;  // also those of one rank, which need no communicator
  GpuBuffer scratch_;
  PinnedBuffer pinned_, weight_;
  GpuStepOrder step_order_;
  GpuCompletionMonitor watch_;  // last: it ends first
};

}  // namespace easyddl
