// The level on GPUs: the communicators, the streams and the memory that all exchanges share.
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
#include "common/wait.h"
#include "gpu/completion_monitor.h"
#include "gpu/memory.h"
#include "gpu/step_order.h"
#include "levels/nccl_level.h"
#include "runtime/topology.h"

namespace easyddl {

class Channel;
class World;

// What is to travel together: arrays of one dtype, by their bytes.
struct GpuLoad {
  DType dtype;
  std::vector<size_t> bytes;
  Reduction reduction;  // its factor does not count

  size_t total() const;
};

// One in a process, held by the world: however many exchanges there are, they need one communicator
// of NCCL among all ranks and one among those of a host, two streams, and as many events as are
// under way. Ending a communicator in order takes all ranks, which close exchanges at times of
// their own: so it stays.
//
// All work is queued on a stream of its own, in one order on all ranks: each call of `prepare` and
// each step of an exchange has its turn, and whoever calls here holds it.
class GpuLevel {
 public:
  // That of a world. Made at the first call.
  static GpuLevel& of(World& world);

  explicit GpuLevel(World& world);
  ~GpuLevel();
  GpuLevel(const GpuLevel&) = delete;
  GpuLevel& operator=(const GpuLevel&) = delete;

  GpuTurns& turns() { return turns_; }
  GpuWatch& watch() { return watch_; }

  // Collective over the channel. Makes ready for such loads: no memory is had later, and NCCL
  // makes no connection. `gpu` is the one on which this rank's arrays lie; a rank that has none
  // takes one by its place on the host. Throws on all ranks if any of them cannot take part, and
  // says which and why.
  void prepare(Channel& channel, const std::vector<GpuLoad>& loads, std::optional<int> gpu);

  // The GPU of this rank, once it is prepared.
  int gpu() const { return gpu_; }

  // The way of a load: the user's wish, or the cheapest. The same on all ranks.
  GpuWay way_of(const GpuLoad& load) const;

  // The GPU's context is current in all that follows.
  CudaStream stream() const { return stream_->get(); }

  // What is queued from now on waits for what the framework's stream was given before: arrays are
  // there then.
  void follow(CudaStream framework);

  // The same for a weight that lies on the GPU, which is read: returns once it is there.
  float read(const float* weight, CudaStream framework);

  // Queues the reduction of a load over all ranks, on any way but the host's. By NCCL it returns at
  // once; by the hierarchy when the data of other hosts has come. To be called within the channel's
  // `take_part`.
  void reduce(Channel& channel, const std::vector<Piece>& arrays, DType dtype, GpuWay way,
              const Reduction& reduction, const Idle& idle);

  // By the host's way: into its memory, where all of a load lies in a row; and back.
  uint8_t* fetch(const std::vector<Piece>& arrays, const Idle& idle);
  void bring_back(const std::vector<Piece>& arrays);

  // Arrays of a load that hold zeros, for a rank that has none.
  std::vector<Piece> zeros(const std::vector<size_t>& bytes);

 private:
  struct Introduction;
  struct Ids;
  struct Needs;

  Needs needs_of(const std::vector<GpuLoad>& loads) const;
  int gpu_or_mine(std::optional<int> gpu) const;
  void set_up(int gpu);
  Introduction introduce(const Needs& needs, int gpu) const;
  void compare(const std::vector<Introduction>& all, const Needs& needs) const;
  void refuse_shared_gpus(const std::vector<Introduction>& all) const;
  std::vector<Ids> make_ids(Channel& channel, const Needs& missing) const;
  void connect(Channel& channel, const Needs& missing);
  void rehearse(Channel& channel, const std::vector<GpuLoad>& loads);
  void reduce_in_levels(Channel& channel, const std::vector<Piece>& arrays, DType dtype,
                        const Reduction& reduction, const Idle& idle);
  void cross(Channel& channel, uint8_t* shard, size_t bytes, DType dtype,
             const Reduction& reduction, const Idle& idle);
  void wait(const Idle& idle);
  void check();
  size_t shard_bytes(size_t bytes, DType dtype) const;
  void poll_gpu(const std::function<bool()>& ready, const Idle& idle);

  const Layout& layout_;
  const GpuPlaces places_;
  const std::optional<GpuWay> wish_;
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
  GpuTurns turns_;
  GpuWatch watch_;  // last: it ends first
};

}  // namespace easyddl
