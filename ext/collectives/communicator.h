// The hierarchical collectives: shared memory within a host, messages of MPI across hosts.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "arrays/segment_list.h"
#include "collectives/chunk_stream.h"
#include "collectives/fingerprint.h"
#include "levels/direct_level.h"
#include "levels/mpi_level.h"
#include "levels/shared_memory_level.h"
#include "runtime/world.h"

namespace easyddl {

// Collectives over all ranks. All ranks call the same collectives of a communicator in the same
// order. Each communicator has shared memory, message tags and an id of its own, so that
// collectives of different communicators never wait for each other. It does not create a
// communicator of MPI: MPI has only some thousands of these, and creating one takes all ranks.
//
// A collective that fails part-way breaks the communicator, because the phases of the ranks no
// longer agree. Every later call fails at once, on all ranks, with the first error.
//
// The hierarchy follows BlueConnect (Cho et al., 2019): reduce-scatter within a host, the same
// again across hosts on each shard, and all-gather on the way back. Data goes in chunks through
// stages, each of which is a phase of the shared-memory level: copy the chunk in, reduce this
// rank's shard of it, copy the reduced chunk out. While chunk k is copied in, chunk k-1 is reduced
// and chunk k-2 is copied out, so that a phase has only one wait for the other ranks. With several
// hosts the reduction takes more stages, so that the network works on several chunks while the
// cores work on others.
//
// The collectives are implemented in several files: allreduce.cpp, broadcast.cpp,
// variable_length.cpp (all-gather, all-to-all, reduce-scatter) and inter_host_shard.cpp. What they
// have in common is in pipeline.cpp (chunks, phases, comparison of fingerprints) and
// communicator_call.h (lock, errors, trace).
class Communicator {
 public:
  // Collective over the world. `most_bytes` is as much as one collective of those on shared memory
  // (allreduce, broadcast) is expected to carry: what carries more goes in more chunks.
  explicit Communicator(World& world, size_t most_bytes = SIZE_MAX);
  ~Communicator();

  // The same; but if any rank fails to make it, all throw.
  static std::unique_ptr<Communicator> open(World& world, size_t most_bytes = SIZE_MAX);

  // Destroys a communicator that is no longer used, unless MPI may still write to its memory, which
  // must then live as long as the process.
  static void retire(std::unique_ptr<Communicator> communicator);

  // Called now and then while a rank waits; may throw.
  void set_idle(Idle idle) { user_idle_ = std::move(idle); }

  // Breaks the communicator on all ranks: this one gives up a collective that the others may be in.
  void give_up(const std::string& why);

  // The number of ranks.
  int size() const { return topology_.size; }
  const Topology& topology() const { return topology_; }

  void allreduce(const SegmentList& data, DType dtype, Op op, const Fingerprint& fingerprint);
  void broadcast(const SegmentList& data, int root, const Fingerprint& fingerprint);
  void barrier(const Fingerprint& fingerprint);

  // One value of each rank, in their order. Ranks may differ in `value` only.
  std::vector<int64_t> gather_values(int64_t value, const Fingerprint& fingerprint);

  // Where a result of a length that no rank knows beforehand goes: called once, when `counts`
  // (units of each rank) are known. If it throws an Error or another std::exception, all ranks fail
  // alike, and the communicator can be used again.
  using Allocate = std::function<void*(const std::vector<int64_t>& counts)>;

  // Units of all ranks, in their order, one after the other: `count` of this one.
  void all_gather(const void* in, int64_t count, size_t unit_bytes, const Fingerprint& fingerprint,
                  const Allocate& allocate);
  // The same where all know all counts.
  void all_gather(const void* in, void* out, const std::vector<int64_t>& counts, size_t unit_bytes,
                  const Fingerprint& fingerprint);

  // Sends sends[r] units to rank r; what comes from the ranks lies one after the other.
  void all_to_all(const void* in, const std::vector<int64_t>& sends, size_t unit_bytes,
                  const Fingerprint& fingerprint, const Allocate& allocate);

  // Bytes of `root`, which alone knows how many there are, to all ranks. `allocate` is passed their
  // number. The root's `in` is read only.
  void broadcast_unknown(const void* in, int64_t bytes, int root, const Fingerprint& fingerprint,
                         const Allocate& allocate);

  // out = the reduction of part r of all ranks' `in`, for rank r; `count` elements a part.
  void reduce_scatter(const void* in, void* out, size_t count, DType dtype, Op op,
                      const Fingerprint& fingerprint);

  // A collective that does not use the shared memory. `run` is called once, with what
  // it has to call now and then while it waits. Nothing compares the ranks' fingerprints.
  void take_part(const char* name, size_t bytes, const Fingerprint& fingerprint,
                 const std::function<void(const Idle&)>& run);

  // A leader's shard, which comes to memory of the host in chunks and goes from there. Where MPI
  // may itself take it `on_gpu`, and else null, only `part_of` each chunk comes and goes.
  struct HostShard {
    uint8_t* data;
    uint8_t* on_gpu;
    size_t bytes, chunk_bytes;
    DType dtype;
    Op op;
    bool is_scaled;  // whether any leader's factor matters; the same on all
    double factor;   // what the shard is still to be multiplied by
    std::function<bool(size_t chunk)> has_come;              // until it has, once
    std::function<void(size_t chunk)> on_reduced;            // in their order
    std::function<void(const std::function<bool()>&)> wait;  // until that is true
  };

  // Reduces a shard over all hosts, within `take_part`. To be called by all leaders.
  void reduce_across_hosts(const HostShard& shard);
  InterHostOperation::Shard part_of(size_t count) const { return remote_.part_of(count); }

  World& world() const { return world_; }

 private:
  struct Chunk {
    size_t begin, end;  // bytes of the data
  };
  struct Stage {
    const char* name;
    std::function<void(const Chunk&, uint32_t phase)> run;
  };
  class Call;

  // Below this every rank reads all of the others' data: one wait instead of two.
  static constexpr size_t kAtOnce = 8 << 10;

  // Runs a collective. Unless it ends in order the communicator is broken.
  template <class Run>
  void collective(const char* name, size_t bytes, const Fingerprint& fingerprint, Run run);

  std::string failure() const;
  bool several_hosts() const { return topology_.num_nodes > 1; }
  bool is_leader() const { return topology_.local_rank < topology_.num_leaders; }
  int owners() const;
  Chunk shard(const Chunk& chunk, int owner) const;
  Chunk chunk_at(size_t index, size_t bytes) const;

  void reduce_at_once(const SegmentList& data, DType dtype, Op op, const Fingerprint& fingerprint);
  size_t least_direct_bytes() const;
  void reduce_directly(const SegmentList& data, DType dtype, Op op, const Fingerprint& fingerprint);
  void reduce_own_shard(const SegmentList& data, const Chunk& chunk, uint32_t phase, DType dtype,
                        Op op);
  std::vector<Stage> stages_of_allreduce(const SegmentList& data, DType dtype, Op op);
  void reduce_within(Schedule& schedule, const SegmentList& data, const Chunk& chunk,
                     uint32_t phase, DType dtype, Op op);
  void spread(const Schedule& schedule, const SegmentList& data, const Chunk& chunk, uint32_t phase,
              DType dtype, Op op);
  std::vector<Stage> inter_host_stages(const SegmentList& data, DType dtype, Op op);
  std::vector<double> factors_of(const HostShard& shard);
  void plan(Schedule& schedule, const HostShard& shard, size_t chunk,
            const std::vector<double>& factors);
  Schedule& schedule(uint32_t phase) { return schedules_[phase % kSchedules]; }
  bool advance_schedules();
  void complete(Schedule& schedule, const char* name = "wait across hosts");
  void wait_for_phase(uint32_t phase);
  const void* const* sources(const uint8_t* own, size_t offset, uint32_t phase);
  void idle();

  void pipeline(size_t bytes, const Fingerprint& fingerprint, const std::vector<Stage>& stages);
  void rendezvous(const Fingerprint& fingerprint);
  bool members_agree(uint32_t phase, uint64_t hash);
  void compare_hosts(uint32_t phase, const Fingerprint& fingerprint);
  std::vector<uint64_t> all_hosts(uint64_t value);
  [[noreturn]] void disagree(const Fingerprint& fingerprint);
  std::vector<int64_t> values_of_all(int64_t value);
  void* memory_of_all(const Fingerprint& fingerprint, const std::vector<int64_t>& counts,
                      const Allocate& allocate);
  void gather_arrays(const void* in, void* out, const std::vector<int64_t>& bytes);
  void exchange_arrays(const void* in, void* out, const std::vector<int64_t>& sends,
                       const std::vector<int64_t>& receives);
  void travel(std::vector<ChunkStream::Array> leaving, std::vector<ChunkStream::Array> coming,
              size_t own);
  void carry_out_broadcast(const SegmentList& data, int root, const Fingerprint& fingerprint);

  World& world_;
  const Topology& topology_;
  size_t id_;  // the same on all ranks, and never used again
  int tag_;    // the first of its own
  SharedMemoryLevel local_;
  DirectLevel direct_;
  MpiLevel remote_;
  std::mutex mutex_;
  Idle user_idle_;
  Idle idle_;                                 // this communicator's `idle`, bound once
  const Fingerprint* fingerprint_ = nullptr;  // of the collective in progress, and its number
  uint64_t number_ = 0;
  bool goes_elsewhere_ = false;  // it is one that `take_part` has begun
  uint64_t slow_ = 0;  // the last one in which this rank has waited for long, and since when
  std::chrono::steady_clock::time_point slow_since_;
  std::vector<const void*> sources_;
  // This leader's shards that cross the hosts, by phase. A chunk's takes three phases; a power of
  // two, as slots are. They outlive a collective that fails: MPI may still write to them.
  static constexpr uint32_t kSchedules = 4;
  std::array<Schedule, kSchedules> schedules_;
  Schedule control_schedule_;  // what the ranks say of a collective, beside its data
  ChunkStream leaving_, coming_;
  mutable std::mutex failure_mutex_;
  std::string own_failure_;          // why this rank has broken the communicator
  std::atomic<bool> broken_{false};  // a collective is in progress, or one has ended half-way
};

}  // namespace easyddl
