#include "collectives/inter_host_shard.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "arrays/arithmetic.h"
#include "collectives/value_exchange.h"

namespace easyddl {
namespace {

// Returns the factor of each host if MPI reads the shard from GPU memory, where the receiver
// multiplies. Empty otherwise.
std::vector<double> factors_of(CollectiveContext& context, const InterHostShard& shard) {
  std::vector<double> factors;
  if (!shard.is_scaled || shard.on_gpu == nullptr) return factors;
  uint64_t mine = 0;
  std::memcpy(&mine, &shard.factor, sizeof mine);
  for (uint64_t bits : values_of_hosts(context, mine)) {
    std::memcpy(&factors.emplace_back(), &bits, sizeof bits);
  }
  return factors;
}

// Adds the steps for a chunk to a schedule.
void plan(CollectiveContext& context, Schedule& schedule, const InterHostShard& shard, size_t chunk,
          const std::vector<double>& factors) {
  MpiLevel& remote = context.remote();
  const size_t begin = chunk * shard.chunk_bytes, unit = size_of(shard.dtype);
  const size_t count = (std::min(shard.bytes, begin + shard.chunk_bytes) - begin) / unit;
  uint8_t* const data = shard.data + begin;
  const DType wide = accumulator_of(shard.dtype);
  const size_t leaders = static_cast<size_t>(context.topology().num_leaders);
  const size_t all_bytes = shard.bytes / unit * size_of(wide) * leaders;
  if (shard.on_gpu != nullptr) {
    uint8_t* const mine = data + remote.part_of(count).begin * unit;
    return remote.plan_sum_on_gpu(schedule, shard.on_gpu + begin, count, mine, shard.dtype, factors,
                                  all_bytes);
  }
  if (shard.is_scaled) scale(data, data, count, shard.dtype, shard.factor);
  schedule.count = count;
  schedule.data.resize(count * size_of(wide));
  const void* const source = data;
  accumulate(schedule.data.data(), &source, 1, count, shard.dtype, Op::sum);
  remote.plan_allreduce(schedule, wide, Op::sum, all_bytes, shard.wire);
  schedule.add("round", [data, count, &schedule, dtype = shard.dtype] {
    finish(data, schedule.data.data(), count, dtype, Op::sum, 1);
  });
}

}  // namespace

// Works like the stages of an allreduce, but begins each chunk when it arrives.
void reduce_across_hosts(CollectiveContext& context, const InterHostShard& shard) {
  const size_t chunks = (shard.bytes + shard.chunk_bytes - 1) / shard.chunk_bytes;
  const std::vector<double> factors = factors_of(context, shard);
  size_t begun = 0, reduced = 0;
  const auto advance = [&] {
    bool has_advanced = false;
    context.advance_schedules();
    while (begun < chunks && begun - reduced < CollectiveContext::kSchedules &&
           shard.has_arrived(begun)) {
      Schedule& next = context.schedule(static_cast<uint32_t>(begun));
      plan(context, next, shard, begun, factors);
      next.advance();
      ++begun;
      has_advanced = true;
    }
    while (reduced < begun && !context.schedule(static_cast<uint32_t>(reduced)).is_in_progress()) {
      shard.on_reduced(reduced);
      ++reduced;
      has_advanced = true;
    }
    return has_advanced;
  };
  while (reduced < chunks) shard.wait(advance);
}

}  // namespace easyddl
