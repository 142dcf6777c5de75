// A channel's part on GPUs: the communicators, the stream and the memory of its collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "gpu_memory.h"
#include "gpu_way.h"
#include "nccl_level.h"
#include "pieces.h"
#include "wait.h"

namespace easyddl {

class Channel;

// What is to travel together: arrays of one dtype, by their bytes.
struct GpuLoad {
  DType dtype;
  std::vector<size_t> bytes;
  Reduction reduction;  // its factor does not count

  size_t total() const;
};

// Made by all ranks together, at their first arrays on GPUs, and kept by the channel: an exchange
// that is closed leaves it to the next. Ending a communicator in order takes all ranks, which
// close at times of their own.
//
// All work is queued on a stream of its own, in the same order on all ranks, by one thread: the
// one that has called `prepare` last.
class GpuLevel {
 public:
  explicit GpuLevel(Channel& channel);
  ~GpuLevel();
  GpuLevel(const GpuLevel&) = delete;
  GpuLevel& operator=(const GpuLevel&) = delete;

  // Collective over the channel. Makes ready for such loads: no memory is had later, and NCCL
  // makes no connection, which might wait for streams that wait for this one. `gpu` is the one on
  // which this rank's arrays lie; a rank that has none takes one by its place on the host. Throws
  // on all ranks if any of them cannot take part, and says which and why.
  void prepare(const std::vector<GpuLoad>& loads, std::optional<int> gpu);

  // The way of a load: the user's wish, or the cheapest. The same on all ranks.
  GpuWay way_of(const GpuLoad& load) const;

  CudaStream stream() const { return stream_->get(); }

  // Queues the reduction of a load over all ranks, on any way but the host's. To be called within
  // the channel's `take_part`.
  void reduce(const std::vector<Piece>& arrays, DType dtype, GpuWay way, const Reduction& reduction,
              const Idle& idle);

  // By the host's way: into its memory, where all of a load lies in a row; and back.
  uint8_t* fetch(const std::vector<Piece>& arrays, const Idle& idle);
  void bring_back(const std::vector<Piece>& arrays);

  // Arrays of a load that hold zeros, for a rank that has none.
  std::vector<Piece> zeros(const std::vector<size_t>& bytes);

  // Returns once all that is queued is done. Ends the communicators if it takes too long, or if
  // NCCL meets an error.
  void wait(const Idle& idle);

 private:
  struct Introduction;
  struct Needs;

  Needs needs_of(const std::vector<GpuLoad>& loads) const;
  void set_up(int gpu);
  Introduction introduce(const Needs& needs, std::optional<int> gpu) const;
  void compare(const std::vector<Introduction>& all, const Needs& needs) const;
  void refuse_shared_gpus(const std::vector<Introduction>& all) const;
  void connect(const std::vector<Introduction>& all, const Needs& needs);
  void rehearse(const std::vector<GpuLoad>& loads);
  void reduce_in_levels(const std::vector<Piece>& arrays, DType dtype, const Reduction& reduction,
                        const Idle& idle);
  void cross(uint8_t* shard, size_t bytes, DType dtype, const Reduction& reduction,
             const Idle& idle);
  size_t shard_bytes(size_t bytes, DType dtype) const;
  void poll_gpu(const std::function<bool()>& ready, const Idle& idle);
  void abort();

  Channel& channel_;
  const Layout& layout_;
  const GpuPlaces places_;
  const std::optional<GpuWay> wish_;
  int gpu_ = -1;
  bool mpi_takes_gpu_memory_ = false;
  std::optional<GpuStream> stream_, back_;  // the other for what returns from the host
  std::optional<GpuEvent> done_, returned_;
  std::vector<GpuEvent> fetched_;
  std::unique_ptr<NcclLevel> world_, host_;
  GpuBuffer scratch_;
  PinnedBuffer pinned_;
};

}  // namespace easyddl
