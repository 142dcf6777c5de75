#include <algorithm>
#include <cstring>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/communicator.h"
#include "collectives/communicator_call.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// From here on ranks of one host reach into each other's memory, where the kernel lets them: below
// it, the calls take longer than the copies that they save. Among many ranks each block takes as
// many calls again, and the shared memory is faster up to some megabytes, by measurement.
constexpr size_t kDirectlyByTwo = 64 << 10;
constexpr size_t kDirectlyByMore = 8 << 20;

}  // namespace

void Communicator::allreduce(const SegmentList& data, DType dtype, Op op,
                             const Fingerprint& fingerprint) {
  collective("allreduce", data.bytes(), fingerprint, [&] {
    if (topology_.size == 1) {
      data.for_each(0, data.bytes(), [](const uint8_t* in, uint8_t* out, size_t, size_t bytes) {
        std::memmove(out, in, bytes);
      });
    } else if (!several_hosts() && data.bytes() <= kAtOnce) {
      reduce_at_once(data, dtype, op, fingerprint);
    } else if (direct_.is_possible() && data.bytes() >= least_direct_bytes()) {
      reduce_directly(data, dtype, op, fingerprint);
    } else {
      pipeline(data.bytes(), fingerprint, stages_of_allreduce(data, dtype, op));
    }
  });
}

std::vector<Communicator::Stage> Communicator::stages_of_allreduce(const SegmentList& data,
                                                                   DType dtype, Op op) {
  const auto copy_in = [&](const Chunk& chunk, uint32_t phase) {
    // My own shard is read where it is; only what others reduce needs copying.
    const Chunk mine = is_leader() ? shard(chunk, local_.rank()) : Chunk{chunk.end, chunk.end};
    uint8_t* slot = local_.slot(local_.rank(), phase);
    data.copy_in(chunk.begin, mine.begin, slot);
    data.copy_in(mine.end, chunk.end, slot + (mine.end - chunk.begin));
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t phase) {
    for (int owner = 0; owner < owners(); ++owner) {
      if (owner == local_.rank()) continue;
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(owner, phase) + (theirs.begin - chunk.begin));
    }
  };
  std::vector<Stage> stages{{"copy in", copy_in}};
  if (several_hosts()) {
    for (Stage& stage : inter_host_stages(data, dtype, op)) stages.push_back(std::move(stage));
  } else {
    stages.push_back({"reduce", [&data, dtype, op, this](const Chunk& chunk, uint32_t phase) {
                        reduce_own_shard(data, chunk, phase, dtype, op);
                      }});
  }
  stages.push_back({"copy out", copy_out});
  return stages;
}

// One phase: all write, all wait for all, all reduce everything.
void Communicator::reduce_at_once(const SegmentList& data, DType dtype, Op op,
                                  const Fingerprint& fingerprint) {
  const uint32_t phase = local_.phase();
  local_.note(local_.rank(), phase) = {fingerprint.hash, 0};
  {
    const Span span("copy in", data.bytes());
    data.copy_in(0, data.bytes(), local_.slot(local_.rank(), phase));
  }
  local_.wait(phase - 1, idle_);
  local_.end_phase();
  local_.wait(phase, idle_);
  if (!members_agree(phase, fingerprint.hash)) disagree(fingerprint);
  const Span span("reduce", data.bytes());
  data.for_each(0, data.bytes(), [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
    accumulate_and_finish(out, sources(nullptr, offset, phase), sources_.size(),
                          bytes / size_of(dtype), dtype, op, topology_.size);
  });
}

size_t Communicator::least_direct_bytes() const {
  return topology_.local_size == 2 ? kDirectlyByTwo : kDirectlyByMore;
}

// One phase, for the ranks to come and to offer their arrays. Where some cannot be reached, such as
// a device's memory, all take the shared memory.
void Communicator::reduce_directly(const SegmentList& data, DType dtype, Op op,
                                   const Fingerprint& fingerprint) {
  const uint32_t phase = local_.phase();
  local_.note(local_.rank(), phase) = {fingerprint.hash, 0};
  DirectLevel::Offer offer(direct_, data, phase);
  local_.wait(phase - 1, idle_);
  local_.end_phase();
  local_.wait(phase, idle_);
  if (!members_agree(phase, fingerprint.hash)) {
    offer.close();  // nobody takes it
    disagree(fingerprint);
  }
  if (direct_.all_offer(phase)) {
    direct_.reduce(data, phase, dtype, op, topology_.size, idle_);
  } else {
    offer.close();  // the shared memory's slots are written anew
    pipeline(data.bytes(), fingerprint, stages_of_allreduce(data, dtype, op));
  }
  offer.close();
}

// Where each member's data lies, from `offset` of the chunk on: `own` is where this rank's
// does, or null if it too lies in its slot.
const void* const* Communicator::sources(const uint8_t* own, size_t offset, uint32_t phase) {
  for (int member = 0; member < local_.size(); ++member) {
    const bool elsewhere = own != nullptr && member == local_.rank();
    sources_[static_cast<size_t>(member)] = elsewhere ? own : local_.slot(member, phase) + offset;
  }
  return sources_.data();
}

// Reduces my shard into my own slot, where nothing was copied in, and into my own result.
void Communicator::reduce_own_shard(const SegmentList& data, const Chunk& chunk, uint32_t phase,
                                    DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  uint8_t* total = local_.slot(local_.rank(), phase) + start;
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t* out, size_t offset, size_t bytes) {
        accumulate_and_finish(total + offset, sources(in, start + offset, phase), sources_.size(),
                              bytes / size_of(dtype), dtype, op, topology_.size);
        std::memcpy(out, total + offset, bytes);
      });
}

// How the shards of a chunk cross the hosts: in one stage if they are all there is, else in three,
// so that those of three chunks are in progress at a time.
std::vector<Communicator::Stage> Communicator::inter_host_stages(const SegmentList& data,
                                                                 DType dtype, Op op) {
  const DType wide = accumulator_of(dtype);
  const auto by_leaders = [this](const char* name, auto run) -> Stage {
    if (!is_leader()) return {name, [](const Chunk&, uint32_t) {}};
    return {name, run};
  };
  const auto set_out = [=, &data](const Chunk& chunk, uint32_t phase) {
    reduce_within(schedule(phase), data, chunk, phase, dtype, op);
    remote_.plan_allreduce(schedule(phase), wide, op);
    schedule(phase).advance();
  };
  const auto arrive = [=, &data](const Chunk& chunk, uint32_t phase) {
    complete(schedule(phase));
    spread(schedule(phase), data, chunk, phase, dtype, op);
  };
  if (data.bytes() <= local_.slot_bytes()) {
    return {by_leaders("reduce", [=](const Chunk& chunk, uint32_t phase) {
      const Span span("allreduce across hosts", chunk.end - chunk.begin);
      set_out(chunk, phase);
      arrive(chunk, phase);
    })};
  }
  const auto go_on = [this](const Chunk&, uint32_t) { advance_schedules(); };
  return {by_leaders("reduce", set_out), by_leaders("cross the hosts", go_on),
          by_leaders("collect", arrive)};
}

// The partial result of this host crosses the others before it is rounded.
void Communicator::reduce_within(Schedule& schedule, const SegmentList& data, const Chunk& chunk,
                                 uint32_t phase, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  schedule.count = (mine.end - mine.begin) / size_of(dtype);
  schedule.data.resize((mine.end - mine.begin) * widened);
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t*, size_t offset, size_t bytes) {
        accumulate(schedule.data.data() + offset * widened, sources(in, start + offset, phase),
                   sources_.size(), bytes / size_of(dtype), dtype, op);
      });
}

// To this rank's own result, and to the other members if there are any.
void Communicator::spread(const Schedule& schedule, const SegmentList& data, const Chunk& chunk,
                          uint32_t phase, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  uint8_t* total = local_.slot(local_.rank(), phase) + (mine.begin - chunk.begin);
  data.for_each(mine.begin, mine.end,
                [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                  finish(out, schedule.data.data() + offset * widened, bytes / size_of(dtype),
                         dtype, op, topology_.size);
                  if (local_.size() > 1) std::memcpy(total + offset, out, bytes);
                });
}

}  // namespace easyddl
