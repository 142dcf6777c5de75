#include "levels/mpi_level.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "arrays/arithmetic.h"

namespace easyddl {

MpiLevel::Members::Members(const MpiComm& c, int owner_count, bool all_alone)
    : comm(c.get()), owners(owner_count), are_all_alone(all_alone) {
  if (comm == MPI_COMM_NULL) return;
  rank = c.rank();
  size = c.size();
}

InterHostOperation MpiLevel::Members::operation(uint8_t* data, size_t count, DType dtype,
                                                Op op) const {
  return {comm, rank, size, owners, data, count, dtype, op};
}

InterHostOperation MpiLevel::Members::operation_on(const InterHostOperation& whole,
                                                   bool is_last) const {
  InterHostOperation mine = whole;
  mine.comm = comm;
  mine.rank = rank;
  mine.size = size;
  mine.owners = owners;
  mine.is_last = is_last;
  return mine;
}

MpiLevel::MpiLevel(const Topology& topology, const AlgorithmRules& rules)
    : across_(topology.across.get()), rules_(rules) {
  if (across_ == MPI_COMM_NULL) return;
  rank_ = topology.across.rank();
  size_ = topology.across.size();
  const std::vector<int>& group_of = topology.levels[0].group_of;
  for (size_t host : topology.order) {
    if (group_of[host] == group_of[static_cast<size_t>(rank_)]) hosts_.push_back(host);
  }
  int members = size_;  // of all groups of the level
  for (const Topology::Level& level : topology.levels) {
    levels_.emplace_back(level.comm, level.num_leaders, level.num_groups == members);
    members = level.num_groups;
  }
  flat_.emplace_back(topology.across, size_, false);
}

void MpiLevel::plan_all_gather(Schedule& schedule, uint64_t value) const {
  schedule.data.resize(static_cast<size_t>(size_) * sizeof value);
  std::memcpy(schedule.data.data() + static_cast<size_t>(rank_) * sizeof value, &value,
              sizeof value);
  schedule.add("agree across hosts",
               [=, &schedule] { exchange(schedule, schedule.data.data(), sizeof value); });
}

// Starts the messages that gather a value of each host. `values` holds this host's own already.
void MpiLevel::exchange(Schedule& schedule, uint8_t* values, size_t bytes) const {
  const auto slot = [=](int host) { return values + static_cast<size_t>(host) * bytes; };
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    schedule.receive(across_, slot(peer), bytes, peer);
    schedule.send(across_, slot(rank_), bytes, peer);
  }
}

// Only float32 is sent in another type: the other accumulators are exact, or wanted to be.
void MpiLevel::plan_allreduce(Schedule& schedule, DType dtype, Op op, size_t all_bytes,
                              std::optional<DType> wire) {
  InterHostOperation whole = flat_[0].operation(schedule.data.data(), schedule.count, dtype, op);
  if (wire && dtype == DType::float32) {
    whole.wire_dtype = *wire;
    schedule.wire.resize(whole.wire_bytes(whole.count));
    whole.wire = schedule.wire.data();
  }
  const size_t sent = whole.wire_bytes(all_bytes / size_of(dtype));
  const bool is_scaled = whole.wire_dtype == DType::float16 && whole.count > 0;
  if (is_scaled) plan_scaling(schedule);
  plan(rules_.is_flat(sent) ? flat_ : levels_, 0, schedule, whole, sent);
  if (is_scaled) {
    schedule.add("scale", [&schedule] {
      uint8_t* const data = schedule.data.data();
      scale(data, data, schedule.count, DType::float32, 1 / schedule.factor);
    });
  }
}

// Multiplies the data of all hosts by one power of two. With one power for all levels, an element
// that is rounded already stays the same on each of them.
void MpiLevel::plan_scaling(Schedule& schedule) const {
  const auto exponents = [this, &schedule] {
    return reinterpret_cast<int32_t*>(schedule.inbox(static_cast<size_t>(size_) * sizeof(int32_t)));
  };
  schedule.add("agree across hosts", [this, exponents, &schedule] {
    int32_t* const by_host = exponents();
    const auto* const data = reinterpret_cast<const float*>(schedule.data.data());
    by_host[rank_] = largest_exponent(data, schedule.count);
    exchange(schedule, reinterpret_cast<uint8_t*>(by_host), sizeof(int32_t));
  });
  schedule.add("scale", [this, exponents, &schedule] {
    const int largest = *std::max_element(exponents(), exponents() + size_);
    const int hosts = static_cast<int>(std::ceil(std::log2(size_)));
    schedule.factor = std::ldexp(1.0, exponent_for_float16(largest, hosts));
    uint8_t* const data = schedule.data.data();
    scale(data, data, schedule.count, DType::float32, schedule.factor);
  });
}

// Adds a reduce-scatter among the members of a level, then the same for the own shard on the next
// level, then an all-gather. So each group sends its data to other groups only once.
void MpiLevel::plan(const std::vector<Members>& levels, size_t level, Schedule& schedule,
                    const InterHostOperation& whole, size_t all_bytes) {
  if (level == levels.size() || whole.count == 0) return;
  const InterHostOperation operation =
      levels[level].operation_on(whole, level + 1 == levels.size());
  if (operation.size == 1) {
    plan(levels, level + 1, schedule, operation, all_bytes);
    // Larger groups of this level round the sum before they gather it.
    if (operation.wire != nullptr && !levels[level].are_all_alone) {
      add_all_gather(InterHostAlgorithm::direct, operation, schedule);
    }
    return;
  }
  const bool is_last = operation.is_last;
  InterHostAlgorithm algorithm = rules_.algorithm(level, all_bytes)
                                     .value_or(cheapest_inter_host_algorithm(
                                         operation.wire_bytes(operation.count), operation.size));
  if (is_last && algorithm == InterHostAlgorithm::whole) return add_whole(operation, schedule);
  // The next level needs each shard at its owner.
  if (!is_last) algorithm = algorithm_with_shards(algorithm, operation);
  add_reduce_scatter(algorithm, operation, schedule);
  const InterHostOperation::Shard mine = operation.shard(operation.rank);
  plan(levels, level + 1, schedule, operation.part(mine), all_bytes);
  add_all_gather(algorithm, operation, schedule);
}

InterHostOperation::Shard MpiLevel::part_of(size_t count) const {
  const InterHostOperation operation = levels_[0].operation(nullptr, count, DType::uint8, Op::sum);
  return operation.shard(operation.rank);
}

// Sums, and data for other groups, are in host memory.
void MpiLevel::plan_sum_on_gpu(Schedule& schedule, uint8_t* data, size_t count, uint8_t* mine,
                               DType dtype, const std::vector<double>& factors, size_t all_bytes) {
  GpuShardOperation shard{levels_[0].operation(data, count, dtype, Op::sum), mine, {}};
  for (size_t host : hosts_) {
    if (!factors.empty()) shard.factors.push_back(factors[host]);
  }
  const DType wide = accumulator_of(dtype);
  schedule.count = part_of(count).count;
  schedule.data.resize(schedule.count * size_of(wide));
  add_reduce_scatter_from_gpu(shard, schedule);
  const InterHostOperation sums =
      flat_[0].operation(schedule.data.data(), schedule.count, wide, Op::sum);
  plan(levels_, 1, schedule, sums, all_bytes);
  add_all_gather_to_gpu(shard, schedule);
}

void MpiLevel::plan_broadcast(Schedule& schedule, uint8_t* data, size_t bytes, int root) const {
  schedule.add("broadcast across hosts", [=, &schedule] {
    if (rank_ != root) return schedule.receive(across_, data, bytes, root);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != root) schedule.send(across_, data, bytes, peer);
    }
  });
}

}  // namespace easyddl
