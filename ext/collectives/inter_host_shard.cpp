// How a shard that a caller holds is reduced over all hosts.
#include <algorithm>
#include <cstring>

#include "arrays/arithmetic.h"
#include "collectives/communicator.h"

namespace easyddl {

// Where MPI takes a shard from the GPU, it is the receiver that multiplies.
std::vector<double> Communicator::factors_of(const HostShard& shard) {
  std::vector<double> factors;
  if (!shard.is_scaled || shard.on_gpu == nullptr) return factors;
  uint64_t mine = 0;
  std::memcpy(&mine, &shard.factor, sizeof mine);
  for (uint64_t bits : all_hosts(mine)) {
    std::memcpy(&factors.emplace_back(), &bits, sizeof bits);
  }
  return factors;
}

void Communicator::plan(Schedule& schedule, const HostShard& shard, size_t chunk,
                        const std::vector<double>& factors) {
  const size_t begin = chunk * shard.chunk_bytes, unit = size_of(shard.dtype);
  const size_t count = (std::min(shard.bytes, begin + shard.chunk_bytes) - begin) / unit;
  uint8_t* const data = shard.data + begin;
  if (shard.on_gpu != nullptr) {
    uint8_t* const mine = data + part_of(count).begin * unit;
    return remote_.plan_allreduce_on_gpu(schedule, shard.on_gpu + begin, count, mine, shard.dtype,
                                         shard.op, factors);
  }
  const DType wide = accumulator_of(shard.dtype);
  if (shard.is_scaled) scale(data, data, count, shard.dtype, shard.factor);
  schedule.count = count;
  schedule.data.resize(count * size_of(wide));
  const void* const source = data;
  accumulate(schedule.data.data(), &source, 1, count, shard.dtype, shard.op);
  remote_.plan_allreduce(schedule, wide, shard.op);
  schedule.add("round", [data, count, &schedule, dtype = shard.dtype, op = shard.op] {
    finish(data, schedule.data.data(), count, dtype, op, 1);
  });
}

// Like the stages of an allreduce, but at the pace of what the shard comes and goes by.
void Communicator::reduce_across_hosts(const HostShard& shard) {
  const size_t chunks = (shard.bytes + shard.chunk_bytes - 1) / shard.chunk_bytes;
  const std::vector<double> factors = factors_of(shard);
  size_t set_out = 0, arrived = 0;
  const auto move = [&] {
    bool has_moved = false;
    advance_schedules();
    while (set_out < chunks && set_out - arrived < kSchedules && shard.has_come(set_out)) {
      Schedule& next = schedule(static_cast<uint32_t>(set_out));
      plan(next, shard, set_out, factors);
      next.advance();
      ++set_out;
      has_moved = true;
    }
    while (arrived < set_out && !schedule(static_cast<uint32_t>(arrived)).is_under_way()) {
      shard.on_reduced(arrived);
      ++arrived;
      has_moved = true;
    }
    return has_moved;
  };
  while (arrived < chunks) shard.wait(move);
}

}  // namespace easyddl
