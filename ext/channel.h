// The hierarchical collectives: shared memory within a host, MPI across hosts.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "gpu_way.h"
#include "mpi_level.h"
#include "pieces.h"
#include "shared_memory_level.h"
#include "signature.h"
#include "world.h"

namespace easyddl {

class GpuLevel;

// One line of collectives, all ranks calling the same ones in the same order. Each channel has
// its own memory and communicators, so that collectives on different channels never mix.
//
// Data goes in chunks through stages, each a turn of the shared-memory level: copy the chunk
// in; reduce my shard of it; copy the reduced chunk out. While chunk k is copied in, chunk k-1
// is reduced and chunk k-2 copied out, with one wait for the others in a turn. With several
// hosts the shards of some chunks cross them at a time, in more stages, so that the wire does
// not wait for the cores. Reduce-scatter inside, recursion on the shard and all-gather on the
// way back follow BlueConnect (Cho et al., 2019).
class Channel {
 public:
  // Collective over the world.
  explicit Channel(World& world);
  ~Channel();

  // Called now and then while a rank waits; may throw.
  void set_idle(Idle idle) { user_idle_ = std::move(idle); }

  // Whether a collective ended half-way, so that no other can follow it.
  bool is_broken() const { return broken_; }

  // The number of ranks.
  int size() const { return layout_.size; }
  const Layout& layout() const { return layout_; }
  // A rank in words, with its host.
  std::string name_of(size_t rank) const;

  void allreduce(const Pieces& data, DType dtype, Op op, const Signature& signature);
  void broadcast(const Pieces& data, int root, const Signature& signature);
  void barrier(const Signature& signature);

  // One value of each rank, in their order. Ranks may differ in `value` only.
  std::vector<int64_t> gather_values(int64_t value, const Signature& signature);

  // Bytes [counts[r] of rank r] one after the other.
  void all_gather(const void* in, void* out, const std::vector<int64_t>& counts, size_t unit_bytes,
                  const Signature& signature);

  // Sends sends[r] units to rank r and takes in receives[r] from it.
  void all_to_all(const void* in, void* out, const std::vector<int64_t>& sends,
                  const std::vector<int64_t>& receives, size_t unit_bytes,
                  const Signature& signature);

  // out = the reduction of part r of all ranks' `in`, for rank r; `count` elements a part.
  void reduce_scatter(const void* in, void* out, size_t count, DType dtype, Op op,
                      const Signature& signature);

  // A collective that goes another way than the shared memory's. `run` is called once, with what
  // it has to call now and then while it waits. Nothing compares the ranks' signatures.
  void take_part(const char* name, size_t bytes, const Signature& signature,
                 const std::function<void(const Idle&)>& run);

  // A carrier's shard, which comes to memory of the host in chunks and goes from there. Where MPI
  // may itself take it `on_gpu`, and else null, only `part_of` each chunk comes and goes.
  struct HostShard {
    uint8_t* data;
    uint8_t* on_gpu;
    size_t bytes, chunk_bytes;
    DType dtype;
    Op op;
    bool is_scaled;  // whether any carrier's factor matters; the same on all
    double factor;   // what the shard is still to be multiplied by
    std::function<bool(size_t chunk)> has_come;              // until it has, once
    std::function<void(size_t chunk)> has_crossed;           // in their order
    std::function<void(const std::function<bool()>&)> wait;  // until that is true
  };

  // Reduces a shard over all hosts, within `take_part`. To be called by all carriers.
  void cross_hosts(const HostShard& shard);
  Journey::Shard part_of(size_t count) const { return remote_.part_of(count); }

  // What the channel's exchanges need on GPUs, once they do; and the way that the user asks for.
  GpuLevel& gpu_level();
  std::optional<GpuWay> gpu_way() const { return world_.gpu_way(); }
  std::optional<bool> cuda_aware_mpi() const { return world_.cuda_aware_mpi(); }

 private:
  struct Chunk {
    size_t begin, end;  // bytes of the data
  };
  struct Stage {
    const char* name;
    std::function<void(const Chunk&, uint32_t turn)> run;
  };
  class Call;

  bool several_hosts() const { return layout_.num_nodes > 1; }
  bool carrier() const { return layout_.local_rank < layout_.num_carriers; }
  int owners() const;
  Chunk shard(const Chunk& chunk, int owner) const;
  Chunk chunk_at(size_t index, size_t bytes) const;

  void reduce_at_once(const Pieces& data, DType dtype, Op op, const Signature& signature);
  void sum_pieces(const Pieces& data, const Chunk& chunk, uint32_t turn, DType dtype, Op op);
  std::vector<Stage> stages_of_allreduce(const Pieces& data, DType dtype, Op op);
  void reduce_within(Crossing& crossing, const Pieces& data, const Chunk& chunk, uint32_t turn,
                     DType dtype, Op op);
  void spread(const Crossing& crossing, const Pieces& data, const Chunk& chunk, uint32_t turn,
              DType dtype, Op op);
  std::vector<Stage> crossing_stages(const Pieces& data, DType dtype, Op op);
  std::vector<double> factors_of(const HostShard& shard);
  void plan(Crossing& crossing, const HostShard& shard, size_t chunk,
            const std::vector<double>& factors);
  Crossing& crossing(uint32_t turn) { return crossings_[turn % kCrossings]; }
  bool advance_crossings();
  void complete(Crossing& crossing);
  void wait_for_turn(uint32_t turn);
  const void* const* sources(const uint8_t* own, size_t offset, uint32_t turn);
  void idle();

  void pipeline(size_t bytes, const Signature& signature, const std::vector<Stage>& stages);
  void rendezvous(const Signature& signature);
  bool members_agree(uint32_t turn, uint64_t hash);
  void compare_hosts(uint32_t turn, const Signature& signature);
  [[noreturn]] void disagree(const Signature& signature);
  void wait(MPI_Request& request);

  World& world_;
  const Layout& layout_;
  Comm comm_;
  SharedMemoryLevel local_;
  MpiLevel remote_;
  size_t line_;  // this channel's number in the farewell
  std::mutex mutex_;
  Idle user_idle_;
  Idle idle_;                             // this channel's `idle`, bound once
  const Signature* signature_ = nullptr;  // of the collective under way, and its number
  uint64_t number_ = 0;
  bool goes_elsewhere_ = false;  // it is one that `take_part` has begun
  uint64_t slow_ = 0;  // the last one in which this rank has waited for long, and since when
  std::chrono::steady_clock::time_point slow_since_;
  std::unique_ptr<GpuLevel> gpu_level_;
  std::vector<const void*> sources_;
  // This carrier's shards that cross the hosts, by turn. A chunk's takes three turns; a power of
  // two, as slots are. They outlive a collective that fails: MPI may still write to them.
  static constexpr uint32_t kCrossings = 4;
  std::array<Crossing, kCrossings> crossings_{Crossing(2), Crossing(3), Crossing(4), Crossing(5)};
  bool broken_ = false;  // a collective ended half-way: turns no longer agree
};

}  // namespace easyddl
