// The state of a communicator that its collectives use: its levels, and the messages in progress.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "arrays/byte_range.h"
#include "collectives/chunk_stream.h"
#include "collectives/fingerprint.h"
#include "common/check.h"
#include "common/wait.h"
#include "levels/direct_level.h"
#include "levels/mpi_level.h"
#include "levels/shared_memory_level.h"
#include "runtime/world.h"

namespace easyddl {

// An error that all ranks raise at the same point of a collective. The communicator can be used
// again after it.
class CollectiveError : public Error {
 public:
  using Error::Error;
};

// For at most this much data every rank of a host reads the data of all others, which takes one
// wait instead of two.
constexpr size_t kAtOnceBytes = 8 << 10;

// Each communicator has one context. A collective gets it from Communicator::run, and uses it
// until it ends. The context outlives a collective that fails, because MPI may still write to its
// memory.
class CollectiveContext {
 public:
  // Collective over the world. The tags of its messages begin with `first_tag`. `idle` is called
  // from time to time while a collective waits.
  CollectiveContext(const World& world, int first_tag, size_t most_bytes, Idle idle);
  CollectiveContext(const CollectiveContext&) = delete;
  CollectiveContext& operator=(const CollectiveContext&) = delete;

  // Returns whether MPI may still write to this memory, after a collective that failed part-way.
  bool has_messages_in_progress() const;

  const Topology& topology() const { return topology_; }
  MPI_Comm comm() const { return comm_; }
  const Idle& idle() const { return idle_; }
  SharedMemoryLevel& shared_memory() { return shared_memory_; }
  DirectLevel& direct() { return direct_; }
  MpiLevel& remote() { return remote_; }

  // Sets the fingerprint of the collective in progress until the end of the scope.
  class FingerprintScope {
   public:
    FingerprintScope(CollectiveContext& context, const Fingerprint& fingerprint)
        : context_(context), before_(context.fingerprint_) {
      context.fingerprint_ = &fingerprint;
    }
    ~FingerprintScope() { context_.fingerprint_ = before_; }
    FingerprintScope(const FingerprintScope&) = delete;
    FingerprintScope& operator=(const FingerprintScope&) = delete;

   private:
    CollectiveContext& context_;
    const Fingerprint* before_;
  };
  // The fingerprint of the collective in progress.
  const Fingerprint& fingerprint() const { return *fingerprint_; }

  // Returns whether this rank sends a shard to other hosts, and receives theirs.
  bool is_leader() const { return topology_.local_rank < topology_.num_leaders; }
  // Returns the part of a chunk that a rank of this host reduces.
  ByteRange shard(const ByteRange& chunk, int owner) const {
    return shard_of(chunk, owner, topology_.num_owners());
  }
  ByteRange own_shard(const ByteRange& chunk) const { return shard(chunk, topology_.local_rank); }

  // Returns the addresses of all members' data, from `offset` of the chunk on. `own` is the address
  // of this rank's data, or null if that is in its slot too.
  const void* const* sources(const uint8_t* own, size_t offset, uint32_t phase);
  size_t num_sources() const { return sources_.size(); }

  // Returns the schedule of this leader's shard of the chunk that was written in `phase`. A chunk's
  // schedule is in use for three phases.
  static constexpr uint32_t kSchedules = 4;  // a power of two, as phases are counted modulo 2^32
  Schedule& schedule(uint32_t phase) { return schedules_[phase % kSchedules]; }
  // The schedule for control messages of a collective, as opposed to its data.
  Schedule& control_schedule() { return control_schedule_; }

  // Advances the schedules of all chunks. Returns true if none is in progress.
  bool advance_schedules();
  // Waits until a schedule is completed. `name` is for the timeline.
  void complete(Schedule& schedule, const char* name = "wait across hosts");
  // Waits until all members of the host have ended a phase, and advances the schedules meanwhile.
  void wait_for_phase(uint32_t phase);

  // Notes whether this rank's memory is protected, for its next pipeline to publish.
  void check_protection() { is_protected_ = direct_.is_protected(); }
  bool is_protected() const { return is_protected_; }
  // Finds out whether the memory of any member is protected, as members published in `phase`. From
  // then on `transfer` sends short messages within the host, which MPI copies by its own buffers.
  void compare_protection(uint32_t phase);

  // Sends and receives long arrays. If a rank forwards arrays that it first receives, `own` is the
  // number of bytes that it can send from the beginning.
  void transfer(std::vector<ChunkStream::Array> outgoing, std::vector<ChunkStream::Array> incoming,
                size_t own = SIZE_MAX);

 private:
  const Topology& topology_;
  MPI_Comm comm_;
  const Idle idle_;
  SharedMemoryLevel shared_memory_;
  DirectLevel direct_;
  MpiLevel remote_;
  const Fingerprint* fingerprint_ = nullptr;
  std::vector<const void*> sources_;
  std::array<Schedule, kSchedules> schedules_;
  Schedule control_schedule_;
  ChunkStream outgoing_, incoming_;
  bool is_protected_ = false, is_any_protected_ = false;
};

}  // namespace easyddl
