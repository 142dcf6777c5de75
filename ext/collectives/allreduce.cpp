#include "collectives/allreduce.h"

#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "arrays/arithmetic.h"
#include "collectives/pipeline.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Ranks of one host read and write each other's memory for data of at least these sizes, if the
// kernel permits it. For shorter data the system calls take longer than the copies that they save.
// With more than two ranks each block takes several calls, so that shared memory was measured to be
// faster for data of up to some megabytes.
constexpr size_t kDirectForTwo = 64 << 10;
constexpr size_t kDirectForMore = 8 << 20;

// What an allreduce works on.
struct Operands {
  const SegmentList& data;
  DType dtype;
  Op op;
  std::optional<DType> wire;  // between hosts
};

size_t least_direct_bytes(const Topology& topology) {
  return topology.local_size == 2 ? kDirectForTwo : kDirectForMore;
}

// Publishes this rank's fingerprint in one phase. Waits until all members have ended the phase, and
// returns its number. `publish` writes the data that the other members read.
template <class Publish>
uint32_t take_one_phase(CollectiveContext& context, Publish publish) {
  SharedMemoryLevel& shared_memory = context.shared_memory();
  const uint32_t phase = shared_memory.phase();
  shared_memory.note(shared_memory.rank(), phase) = {context.fingerprint().hash, 0, 0};
  publish(phase);
  shared_memory.wait(phase - 1, context.idle());
  shared_memory.end_phase();
  shared_memory.wait(phase, context.idle());
  return phase;
}

void copy_to_result(const SegmentList& data) {
  data.for_each(0, data.bytes(), [](const uint8_t* in, uint8_t* out, size_t, size_t bytes) {
    std::memmove(out, in, bytes);
  });
}

// Reduces short data on one host in one phase: each rank writes its data, waits for the others, and
// reduces the data of all ranks.
void reduce_at_once(CollectiveContext& context, const Operands& operands) {
  const SegmentList& data = operands.data;
  SharedMemoryLevel& shared_memory = context.shared_memory();
  const uint32_t phase = take_one_phase(context, [&](uint32_t own_phase) {
    const Span span("copy in", data.bytes());
    data.copy_in(0, data.bytes(), shared_memory.slot(shared_memory.rank(), own_phase));
  });
  require_agreement(context, phase);
  const Span span("reduce", data.bytes());
  data.for_each(0, data.bytes(), [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
    accumulate_and_finish(out, context.sources(nullptr, offset, phase), context.num_sources(),
                          bytes / size_of(operands.dtype), operands.dtype, operands.op,
                          context.topology().size);
  });
}

// Reduces this rank's shard into its result and into its slot. That part of the slot is free,
// because `copy_in` leaves it out.
void reduce_own_shard(CollectiveContext& context, const Operands& operands, const ByteRange& chunk,
                      uint32_t phase) {
  const ByteRange mine = context.own_shard(chunk);
  const size_t start = mine.begin - chunk.begin;
  SharedMemoryLevel& shared_memory = context.shared_memory();
  uint8_t* total = shared_memory.slot(shared_memory.rank(), phase) + start;
  operands.data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t* out, size_t offset, size_t bytes) {
        accumulate_and_finish(total + offset, context.sources(in, start + offset, phase),
                              context.num_sources(), bytes / size_of(operands.dtype),
                              operands.dtype, operands.op, context.topology().size);
        std::memcpy(out, total + offset, bytes);
      });
}

// Reduces this rank's shard within the host into a schedule. The shard has the accumulator's type
// until it is reduced across hosts, and is rounded after that.
void reduce_within_host(CollectiveContext& context, const Operands& operands,
                        const ByteRange& chunk, uint32_t phase) {
  const ByteRange mine = context.own_shard(chunk);
  const size_t start = mine.begin - chunk.begin, unit = size_of(operands.dtype);
  const size_t widened = size_of(accumulator_of(operands.dtype)) / unit;
  Schedule& schedule = context.schedule(phase);
  schedule.count = mine.size() / unit;
  schedule.data.resize(mine.size() * widened);
  operands.data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t*, size_t offset, size_t bytes) {
        accumulate(schedule.data.data() + offset * widened,
                   context.sources(in, start + offset, phase), context.num_sources(), bytes / unit,
                   operands.dtype, operands.op);
      });
}

// Rounds a shard that was reduced across hosts into this rank's result, and into its slot if there
// are other members.
void finish_shard(CollectiveContext& context, const Operands& operands, const ByteRange& chunk,
                  uint32_t phase) {
  const ByteRange mine = context.own_shard(chunk);
  const size_t unit = size_of(operands.dtype);
  const size_t widened = size_of(accumulator_of(operands.dtype)) / unit;
  const Schedule& schedule = context.schedule(phase);
  SharedMemoryLevel& shared_memory = context.shared_memory();
  uint8_t* total = shared_memory.slot(shared_memory.rank(), phase) + (mine.begin - chunk.begin);
  operands.data.for_each(mine.begin, mine.end,
                         [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                           finish(out, schedule.data.data() + offset * widened, bytes / unit,
                                  operands.dtype, operands.op, context.topology().size);
                           if (shared_memory.size() > 1) std::memcpy(total + offset, out, bytes);
                         });
}

// The stages in which the shards of a chunk are reduced across hosts: one if there is only one
// chunk, else three, so that the shards of three chunks are in progress at a time.
std::vector<Stage> inter_host_stages(CollectiveContext& context, const Operands& operands) {
  const auto by_leaders = [&](const char* name, auto run) -> Stage {
    if (!context.is_leader()) return {name, [](const ByteRange&, uint32_t) {}};
    return {name, run};
  };
  const auto send = [&context, operands](const ByteRange& chunk, uint32_t phase) {
    reduce_within_host(context, operands, chunk, phase);
    Schedule& schedule = context.schedule(phase);
    const DType wide = accumulator_of(operands.dtype);
    const size_t all_bytes = operands.data.bytes() / size_of(operands.dtype) * size_of(wide);
    context.remote().plan_allreduce(schedule, wide, operands.op, all_bytes, operands.wire);
    schedule.advance();
  };
  const auto collect = [&context, operands](const ByteRange& chunk, uint32_t phase) {
    context.complete(context.schedule(phase));
    finish_shard(context, operands, chunk, phase);
  };
  if (operands.data.bytes() <= context.shared_memory().slot_bytes()) {
    return {by_leaders("reduce", [=](const ByteRange& chunk, uint32_t phase) {
      const Span span("allreduce across hosts", chunk.size());
      send(chunk, phase);
      collect(chunk, phase);
    })};
  }
  const auto advance = [&context](const ByteRange&, uint32_t) { context.advance_schedules(); };
  return {by_leaders("reduce", send), by_leaders("cross the hosts", advance),
          by_leaders("collect", collect)};
}

std::vector<Stage> allreduce_stages(CollectiveContext& context, const Operands& operands) {
  const auto copy_in = [&context, operands](const ByteRange& chunk, uint32_t phase) {
    // This rank reads its own shard from its input. Only the shards of other owners are copied.
    SharedMemoryLevel& shared_memory = context.shared_memory();
    const ByteRange mine =
        context.is_leader() ? context.own_shard(chunk) : ByteRange{chunk.end, chunk.end};
    uint8_t* slot = shared_memory.slot(shared_memory.rank(), phase);
    operands.data.copy_in(chunk.begin, mine.begin, slot);
    operands.data.copy_in(mine.end, chunk.end, slot + (mine.end - chunk.begin));
  };
  const auto copy_out = [&context, operands](const ByteRange& chunk, uint32_t phase) {
    SharedMemoryLevel& shared_memory = context.shared_memory();
    for (int owner = 0; owner < context.topology().num_owners(); ++owner) {
      if (owner == shared_memory.rank()) continue;
      const ByteRange theirs = context.shard(chunk, owner);
      operands.data.copy_out(theirs.begin, theirs.end,
                             shared_memory.slot(owner, phase) + (theirs.begin - chunk.begin));
    }
  };
  std::vector<Stage> stages{{"copy in", copy_in}};
  if (context.topology().has_several_hosts()) {
    for (Stage& stage : inter_host_stages(context, operands)) stages.push_back(std::move(stage));
  } else {
    stages.push_back({"reduce", [&context, operands](const ByteRange& chunk, uint32_t phase) {
                        reduce_own_shard(context, operands, chunk, phase);
                      }});
  }
  stages.push_back({"copy out", copy_out});
  return stages;
}

void reduce_by_pipeline(CollectiveContext& context, const Operands& operands) {
  pipeline(context, operands.data.bytes(), allreduce_stages(context, operands));
}

// Reduces long data on one host. In one phase the ranks publish the addresses of their arrays. If
// any array cannot be reached, such as one in a device's memory, all ranks use shared memory
// instead.
void reduce_directly(CollectiveContext& context, const Operands& operands) {
  DirectLevel& direct = context.direct();
  const uint32_t own_phase = context.shared_memory().phase();
  DirectLevel::Offer offer(direct, operands.data, own_phase);
  const uint32_t phase = take_one_phase(context, [](uint32_t) {});
  if (!members_agree(context, phase)) {
    offer.close();  // no member reads the arrays
    throw_disagreement(context);
  }
  if (direct.are_all_reachable(phase)) {
    direct.reduce(operands.data, phase, operands.dtype, operands.op, context.topology().size,
                  context.idle());
  } else {
    offer.close();  // the pipeline overwrites the slots of the offers
    reduce_by_pipeline(context, operands);
  }
  offer.close();
}

}  // namespace

void allreduce(Communicator& communicator, const SegmentList& data, DType dtype, Op op,
               const Fingerprint& fingerprint, std::optional<DType> wire) {
  communicator.run({"allreduce", data.bytes(), fingerprint}, [&](CollectiveContext& context) {
    const Operands operands{data, dtype, op, wire};
    const Topology& topology = context.topology();
    if (topology.size == 1) {
      copy_to_result(data);
    } else if (!topology.has_several_hosts() && data.bytes() <= kAtOnceBytes) {
      reduce_at_once(context, operands);
    } else if (context.direct().is_possible() && data.bytes() >= least_direct_bytes(topology)) {
      reduce_directly(context, operands);
    } else {
      reduce_by_pipeline(context, operands);
    }
  });
}

}  // namespace easyddl
