#include "collectives/broadcast.h"

#include <algorithm>
#include <cstddef>

#include "collectives/pipeline.h"
#include "collectives/value_exchange.h"

namespace easyddl {
namespace {

// A chunk takes three stages: the root copies it to its slot; the leaders of the root's host send
// one shard each to the leaders of the other hosts, which receive it in their slots; all ranks but
// the root copy the shards to their outputs.
void broadcast_within(CollectiveContext& context, const SegmentList& data, int root) {
  const Topology& topology = context.topology();
  SharedMemoryLevel& shared_memory = context.shared_memory();
  const int root_host = topology.node_of[static_cast<size_t>(root)];
  const bool is_with_root = root_host == topology.node_rank;
  const int root_member = static_cast<int>(
      std::count(topology.node_of.begin(), topology.node_of.begin() + root, root_host));
  // Returns the member whose slot holds a shard.
  const auto holder = [=](int owner) { return is_with_root ? root_member : owner; };
  const auto copy_in = [&](const ByteRange& chunk, uint32_t phase) {
    if (topology.rank != root) return;
    data.copy_in(chunk.begin, chunk.end, shared_memory.slot(shared_memory.rank(), phase));
  };
  const auto cross = [&](const ByteRange& chunk, uint32_t phase) {
    if (!topology.has_several_hosts() || !context.is_leader()) return;
    const ByteRange mine = context.own_shard(chunk);
    uint8_t* slot = shared_memory.slot(holder(shared_memory.rank()), phase);
    context.remote().plan_broadcast(context.schedule(phase), slot + (mine.begin - chunk.begin),
                                    mine.size(), root_host);
    context.complete(context.schedule(phase));
  };
  const auto copy_out = [&](const ByteRange& chunk, uint32_t phase) {
    if (topology.rank == root) return;
    for (int owner = 0; owner < topology.num_owners(); ++owner) {
      const ByteRange theirs = context.shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    shared_memory.slot(holder(owner), phase) + (theirs.begin - chunk.begin));
    }
  };
  pipeline(context, data.bytes(),
           {{"copy in", copy_in}, {"cross the hosts", cross}, {"copy out", copy_out}});
}

}  // namespace

void broadcast(Communicator& communicator, const SegmentList& data, int root,
               const Fingerprint& fingerprint) {
  communicator.run({"broadcast", data.bytes(), fingerprint},
                   [&](CollectiveContext& context) { broadcast_within(context, data, root); });
}

void broadcast_unknown(Communicator& communicator, const void* in, int64_t bytes, int root,
                       const Fingerprint& fingerprint, const Allocate& allocate) {
  communicator.run({"broadcast", 0, fingerprint}, [&](CollectiveContext& context) {
    rendezvous(context);
    const int64_t length = values_of_ranks(context, bytes)[static_cast<size_t>(root)];
    void* const out = allocate_together(context, {length}, allocate);
    const void* const from = context.topology().rank == root ? in : out;
    const Segment whole{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(out),
                        static_cast<size_t>(length)};
    broadcast_within(context, SegmentList({whole}), root);
  });
}

}  // namespace easyddl
