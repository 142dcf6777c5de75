// The level within a host for large arrays: its ranks read and write each other's memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "levels/peer_memory.h"
#include "levels/shared_memory_level.h"
#include "runtime/topology.h"

namespace easyddl {

// Each member publishes the addresses of its arrays. The data is divided into blocks, and each
// member takes the next block as soon as it is free: it reads the block from all other members,
// reduces it, and writes the result to all members. Each input is read once and each result is
// written once. Members wait for each other only at the beginning and at the end, so that a member
// that loses its core delays only one block. The result does not depend on which member reduces a
// block, because sums are in the order of the members.
class DirectLevel {
 public:
  // Collective over topology.host. Addresses are published in slots of `shared_memory`.
  DirectLevel(const Topology& topology, SharedMemoryLevel& shared_memory);

  // Whether the kernel lets all members access each other's memory. The same on all members.
  bool is_possible() const { return is_possible_; }

  // Whether the kernel may have come to protect this process's memory from the other members.
  bool is_protected() const { return !(ProcessCredentials::of_this_process() == credentials_); }

  // Publishes this rank's arrays, which the other members may access from the end of `phase` on. If
  // an exception ends the scope before `close`, the destructor waits until no member accesses them.
  class Offer {
   public:
    Offer(DirectLevel& level, const SegmentList& data, uint32_t phase);
    ~Offer();
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;

    // Declares that no member accesses the arrays any more.
    void close() { is_open_ = false; }

   private:
    DirectLevel& level_;
    uint32_t phase_;
    bool is_open_ = true;
  };

  // Whether the arrays of all members can be accessed. The same on all members. Called once all
  // members have ended `phase`.
  bool are_all_reachable(uint32_t phase);

  // Reduces the arrays that were published in `phase`. Called by all members.
  void reduce(const SegmentList& data, uint32_t phase, DType dtype, Op op, int divisor,
              const Idle& idle);

 private:
  struct BlockProgress;
  struct Announcement;

  BlockProgress& progress(uint32_t phase);
  Announcement& announcement(int member, uint32_t phase);
  size_t most_segments() const;
  size_t block_bytes(size_t bytes) const;
  bool reach_all(const Topology& topology);
  bool is_withdrawn(uint32_t phase);
  void withdraw(uint32_t phase);
  [[noreturn]] void end_job_for_stopped(int member) const;
  bool reduce_block(const SegmentList& data, size_t begin, size_t end, DType dtype, Op op,
                    int divisor);

  SharedMemoryLevel& shared_memory_;
  bool cores_are_shared_;
  std::vector<PeerProcess> processes_;  // by member
  bool is_possible_;
  ProcessCredentials credentials_;            // of this process when all members could access it
  std::vector<PeerMemory> peers_;             // by member, for the reduction in progress
  std::vector<const void*> sources_;          // by member
  std::vector<std::vector<uint8_t>> copies_;  // of a block, by member
};

}  // namespace easyddl
