// A sum over all ranks that proceeds without waiting.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "algorithms/schedule.h"
#include "arrays/byte_range.h"
#include "arrays/segment_list.h"
#include "levels/mpi_level.h"
#include "levels/shared_memory_level.h"
#include "runtime/world.h"

namespace easyddl {

// Sums float32 data in chunks, one after the other. On one host, short data takes one phase of the
// shared memory: all ranks write, and then each rank sums everything. Longer data takes two phases:
// all ranks write; each owner of a shard sums it, also over hosts if there are several; and all
// ranks copy the sums of the shards.
class NonblockingSum {
 public:
  // Collective over topology.host. `most_bytes` is the size of the data. `wake_host` is called when
  // this rank completes a phase, to wake the other ranks of its host.
  NonblockingSum(const World& world, int tag, size_t most_bytes, std::function<void()> wake_host);

  // Begins a sum. None may be in progress.
  void begin(std::unique_ptr<SegmentList> data);

  // Performs the next state transition if that needs no waiting. Returns whether it did.
  bool advance();

  bool is_in_progress() const { return state_ != State::idle; }
  bool is_between_hosts() const { return state_ == State::between_hosts; }

 private:
  enum class State {
    idle,
    gathering,      // until all members of the host have written the chunk
    between_hosts,  // until its shard is reduced across hosts
    spreading,      // until all owners have written the sums of their shards
  };

  void begin_chunk();
  void end_gathering();
  bool end_between_hosts();
  void end_chunk();
  void end_phase();
  void reduce_at_once();
  void reduce_shard();
  void reduce_across_hosts();
  void copy_shards();
  ByteRange chunk() const;
  ByteRange shard(int owner) const;
  bool is_at_once() const;
  const void* const* sources(size_t offset);

  const Topology& topology_;
  SharedMemoryLevel shared_memory_;
  MpiLevel remote_;
  Schedule schedule_;
  const std::function<void()> wake_host_;
  std::vector<const void*> sources_;
  // Of the sum in progress.
  State state_ = State::idle;
  std::unique_ptr<SegmentList> data_;
  size_t at_ = 0;       // offset of the chunk
  uint32_t phase_ = 0;  // in which it was written
};

}  // namespace easyddl
