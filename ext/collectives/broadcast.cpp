#include <algorithm>

#include "collectives/communicator.h"
#include "collectives/communicator_call.h"

namespace easyddl {

void Communicator::broadcast(const SegmentList& data, int root, const Fingerprint& fingerprint) {
  collective("broadcast", data.bytes(), fingerprint,
             [&] { carry_out_broadcast(data, root, fingerprint); });
}

void Communicator::carry_out_broadcast(const SegmentList& data, int root,
                                       const Fingerprint& fingerprint) {
  const int root_node = topology_.node_of[static_cast<size_t>(root)];
  const bool with_root = root_node == topology_.node_rank;
  const int root_member = static_cast<int>(
      std::count(topology_.node_of.begin(), topology_.node_of.begin() + root, root_node));
  const auto home = [&](int owner) { return with_root ? root_member : owner; };
  const auto copy_in = [&](const Chunk& chunk, uint32_t phase) {
    if (topology_.rank != root) return;
    data.copy_in(chunk.begin, chunk.end, local_.slot(local_.rank(), phase));
  };
  const auto cross = [&](const Chunk& chunk, uint32_t phase) {
    if (!several_hosts() || !is_leader()) return;
    const Chunk mine = shard(chunk, local_.rank());
    uint8_t* slot = local_.slot(home(local_.rank()), phase);
    remote_.plan_broadcast(schedule(phase), slot + (mine.begin - chunk.begin),
                           mine.end - mine.begin, root_node);
    complete(schedule(phase));
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t phase) {
    if (topology_.rank == root) return;
    for (int owner = 0; owner < owners(); ++owner) {
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(home(owner), phase) + (theirs.begin - chunk.begin));
    }
  };
  pipeline(data.bytes(), fingerprint,
           {{"copy in", copy_in}, {"cross the hosts", cross}, {"copy out", copy_out}});
}

void Communicator::broadcast_unknown(const void* in, int64_t bytes, int root,
                                     const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("broadcast", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    const int64_t length = values_of_all(bytes)[static_cast<size_t>(root)];
    void* const out = memory_of_all(fingerprint, {length}, allocate);
    const void* const from = topology_.rank == root ? in : out;
    const Segment whole{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(out),
                        static_cast<size_t>(length)};
    carry_out_broadcast(SegmentList({whole}), root, fingerprint);
  });
}

}  // namespace easyddl
