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

// Each member publishes the addresses of its arrays. The data is cut into blocks, and each member
// takes the next block as soon as it has time: it reads the block from all other members, reduces
// it, and writes the result to all members. Each input is read once and each result is written
// once. Members wait for each other only at the beginning and at the end, so that a member whose
// core is taken away delays one block and not the others. The result does not depend on who reduces
// a block, because the order of a sum is that of the members.
class DirectLevel {
 public:
  // Collective over topology.host. The offers are written to slots of `shared_memory`.
  DirectLevel(const Topology& topology, SharedMemoryLevel& shared_memory);

  // Whether the kernel lets all members reach into each other's memory. The same on all.
  bool is_possible() const { return is_possible_; }

  // This rank's arrays, in the others' reach from the end of `phase` on. Where that ends early, by
  // an exception, the destructor waits until nobody is at work on them.
  class Offer {
   public:
    Offer(DirectLevel& level, const SegmentList& data, uint32_t phase);
    ~Offer();
    Offer(const Offer&) = delete;
    Offer& operator=(const Offer&) = delete;

    // Nobody has use of it any more.
    void close() { is_open_ = false; }

   private:
    DirectLevel& level_;
    uint32_t phase_;
    bool is_open_ = true;
  };

  // Once all have ended `phase`: whether all arrays can be reached. The same on all.
  bool all_offer(uint32_t phase);

  // Reduces what was offered in `phase`. To be called by all members.
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
  [[noreturn]] void end_job_for(int member) const;
  bool reduce_block(const SegmentList& data, size_t begin, size_t end, DType dtype, Op op,
                    int divisor);

  SharedMemoryLevel& shared_memory_;
  bool cores_are_shared_;
  std::vector<pid_t> processes_;
  bool is_possible_;
  std::vector<PeerMemory> peers_;             // of the reduction in progress, by member
  std::vector<const void*> sources_;          // likewise
  std::vector<std::vector<uint8_t>> copies_;  // of a block, by member
};

}  // namespace easyddl
