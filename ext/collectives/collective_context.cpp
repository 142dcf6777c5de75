#include "collectives/collective_context.h"

#include <algorithm>
#include <utility>

#include "profiling/trace.h"

namespace easyddl {
namespace {

// Within a host a chunk should fit in the cache. Across hosts a shard of a chunk is one message,
// which should be so long that the network's latency does not matter.
constexpr size_t kChunkOnOneHost = 256 << 10;
constexpr size_t kChunkOnSeveral = 1 << 20;

// A chunk's slot is in use for one phase a stage, and may be written again two phases later. The
// numbers are powers of two, because phases are counted modulo 2^32.
constexpr uint32_t kSlotsOnOneHost = 4;
constexpr uint32_t kSlotsOnSeveral = 8;

// A slot need not be longer than the data.
size_t slot_bytes_for(size_t bytes, const Topology& topology) {
  const size_t chunk = topology.has_several_hosts() ? kChunkOnSeveral : kChunkOnOneHost;
  return std::min(bytes, chunk);
}

}  // namespace

CollectiveContext::CollectiveContext(const World& world, int first_tag, size_t most_bytes,
                                     Idle idle)
    : topology_(world.topology()),
      comm_(world.comm()),
      idle_(std::move(idle)),
      shared_memory_(topology_, slot_bytes_for(std::max(most_bytes, kAtOnceBytes), topology_),
                     topology_.has_several_hosts() ? kSlotsOnSeveral : kSlotsOnOneHost),
      direct_(topology_, shared_memory_),
      remote_(topology_, world.algorithm_rules()),
      sources_(static_cast<size_t>(topology_.local_size)),
      schedules_{Schedule(first_tag), Schedule(first_tag + 1), Schedule(first_tag + 2),
                 Schedule(first_tag + 3)},
      control_schedule_(first_tag + 4),
      outgoing_(ChunkStream::Direction::send, comm_, first_tag + 5),
      incoming_(ChunkStream::Direction::receive, comm_, first_tag + 5) {}

bool CollectiveContext::has_messages_in_progress() const {
  return control_schedule_.is_in_progress() || outgoing_.is_in_progress() ||
         incoming_.is_in_progress() ||
         std::any_of(schedules_.begin(), schedules_.end(),
                     [](const Schedule& schedule) { return schedule.is_in_progress(); });
}

const void* const* CollectiveContext::sources(const uint8_t* own, size_t offset, uint32_t phase) {
  for (int member = 0; member < shared_memory_.size(); ++member) {
    const bool is_own = own != nullptr && member == shared_memory_.rank();
    sources_[static_cast<size_t>(member)] =
        is_own ? own : shared_memory_.slot(member, phase) + offset;
  }
  return sources_.data();
}

bool CollectiveContext::advance_schedules() {
  bool all_done = true;
  for (Schedule& schedule : schedules_) all_done = schedule.advance() && all_done;
  return all_done;
}

void CollectiveContext::complete(Schedule& schedule, const char* name) {
  const Span span(name);
  const auto done = [&] {
    advance_schedules();
    return schedule.advance();
  };
  poll(done, topology_.cores_are_shared, idle_);
}

// A rank with schedules in progress must not sleep, because the other hosts would wait for it.
void CollectiveContext::wait_for_phase(uint32_t phase) {
  if (advance_schedules()) return shared_memory_.wait(phase, idle_);
  const Span span("wait in the host");
  const auto ended = [&] {
    advance_schedules();
    return shared_memory_.have_all_ended(phase);
  };
  poll(ended, topology_.cores_are_shared, idle_);
}

void CollectiveContext::compare_protection(uint32_t phase) {
  is_any_protected_ = false;
  for (int member = 0; member < shared_memory_.size(); ++member) {
    if (shared_memory_.note(member, phase).is_protected != 0) is_any_protected_ = true;
  }
}

void CollectiveContext::transfer(std::vector<ChunkStream::Array> outgoing,
                                 std::vector<ChunkStream::Array> incoming, size_t own) {
  const Span span("wait for all ranks");
  const auto shorten = [&](std::vector<ChunkStream::Array>& arrays) {
    const auto host_of = [&](int rank) { return topology_.node_of[static_cast<size_t>(rank)]; };
    for (ChunkStream::Array& each : arrays) {
      if (host_of(each.peer) == host_of(topology_.rank))
        each.chunk_bytes = ChunkStream::kBufferedChunkBytes;
    }
  };
  if (is_any_protected_) shorten(outgoing);
  if (is_any_protected_) shorten(incoming);
  outgoing_.begin(std::move(outgoing));
  incoming_.begin(std::move(incoming));
  const auto done = [&] {
    const bool all_received = incoming_.advance();
    const bool all_sent = outgoing_.advance(own == SIZE_MAX ? own : own + incoming_.done());
    return all_received && all_sent;
  };
  poll(done, topology_.cores_are_shared, idle_);
}

}  // namespace easyddl
