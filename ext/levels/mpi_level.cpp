#include "levels/mpi_level.h"

#include <cstring>

namespace easyddl {

MpiLevel::Members::Members(const MpiComm& c, int owner_count) : comm(c.get()), owners(owner_count) {
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
  InterHostOperation mine = operation(whole.data, whole.count, whole.dtype, whole.op);
  mine.is_last = is_last;
  mine.wire_dtype = whole.wire_dtype;
  mine.wire = whole.wire;
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
  for (const Topology::Level& level : topology.levels)
    levels_.emplace_back(level.comm, level.num_leaders);
  flat_.emplace_back(topology.across, size_);
}

void MpiLevel::plan_all_gather(Schedule& schedule, uint64_t value) const {
  schedule.data.resize(static_cast<size_t>(size_) * sizeof value);
  const auto slot = [&schedule](int host) {
    return schedule.data.data() + static_cast<size_t>(host) * sizeof(uint64_t);
  };
  std::memcpy(slot(rank_), &value, sizeof value);
  schedule.add("agree across hosts", [=, &schedule] {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      schedule.receive(across_, slot(peer), sizeof value, peer);
      schedule.send(across_, slot(rank_), sizeof value, peer);
    }
  });
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
  plan(rules_.is_flat(sent) ? flat_ : levels_, 0, schedule, whole, sent);
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
    // The other groups of this level round the sum before they gather it.
    if (operation.wire != nullptr) {
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
void MpiLevel::plan_allreduce_on_gpu(Schedule& schedule, uint8_t* data, size_t count, uint8_t* mine,
                                     DType dtype, Op op, const std::vector<double>& factors,
                                     size_t all_bytes) {
  GpuShardOperation shard{levels_[0].operation(data, count, dtype, op), mine, {}};
  for (size_t host : hosts_) {
    if (!factors.empty()) shard.factors.push_back(factors[host]);
  }
  const DType wide = accumulator_of(dtype);
  schedule.count = part_of(count).count;
  schedule.data.resize(schedule.count * size_of(wide));
  add_reduce_scatter_from_gpu(shard, schedule);
  const InterHostOperation sums =
      flat_[0].operation(schedule.data.data(), schedule.count, wide, op);
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
