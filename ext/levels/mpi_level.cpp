#include "levels/mpi_level.h"

#include <cstring>

namespace easyddl {

MpiLevel::Members::Members(const Comm& c, int owner_count) : comm(c.get()), owners(owner_count) {
  if (comm == MPI_COMM_NULL) return;
  rank = c.rank();
  size = c.size();
}

Journey MpiLevel::Members::journey(uint8_t* data, size_t count, DType dtype, Op op) const {
  return {comm, rank, size, owners, data, count, dtype, op};
}

MpiLevel::MpiLevel(const Layout& layout, std::optional<Route> route)
    : across_(layout.across.get()), route_(route) {
  if (across_ == MPI_COMM_NULL) return;
  rank_ = layout.across.rank();
  size_ = layout.across.size();
  for (size_t host = 0; host < layout.rack_of.size(); ++host) {
    if (layout.rack_of[host] == layout.rack_of[static_cast<size_t>(rank_)]) hosts_.push_back(host);
  }
  if (layout.num_racks == 1) {
    levels_.emplace_back(layout.across, layout.num_nodes);
  } else {
    levels_.emplace_back(layout.in_rack, layout.num_rack_carriers);
    levels_.emplace_back(layout.across_racks, layout.num_racks);
  }
}

void MpiLevel::plan_all_gather(Crossing& crossing, uint64_t value) const {
  crossing.data.resize(static_cast<size_t>(size_) * sizeof value);
  const auto slot = [&crossing](int host) {
    return crossing.data.data() + static_cast<size_t>(host) * sizeof(uint64_t);
  };
  std::memcpy(slot(rank_), &value, sizeof value);
  crossing.add("agree across hosts", [=, &crossing] {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer == rank_) continue;
      crossing.receive(across_, slot(peer), sizeof value, peer);
      crossing.send(across_, slot(rank_), sizeof value, peer);
    }
  });
}

void MpiLevel::plan_allreduce(Crossing& crossing, DType dtype, Op op) {
  plan(0, crossing, crossing.data.data(), crossing.count, dtype, op);
}

// Reduce-scatter among the members, the same again for the own shard among those of the next
// level, and all-gather on the way back: what leaves a rack is a rack's data, once.
void MpiLevel::plan(size_t level, Crossing& crossing, uint8_t* data, size_t count, DType dtype,
                    Op op) {
  if (level == levels_.size() || count == 0) return;
  const Journey journey = levels_[level].journey(data, count, dtype, op);
  const bool is_last = level + 1 == levels_.size();
  Route route = route_.value_or(cheapest_route(journey.bytes(count), journey.size));
  if (is_last && route == Route::whole) return add_whole(journey, crossing);
  // The next level needs each shard where it belongs.
  const bool leaves_shards =
      route != Route::whole && (route != Route::halving || halving_is_even(journey));
  if (!is_last && !leaves_shards) route = Route::direct;
  add_reduce_scatter(route, journey, crossing);
  const Journey::Shard mine = journey.shard(journey.rank);
  plan(level + 1, crossing, journey.at(mine.begin), mine.count, dtype, op);
  add_all_gather(route, journey, crossing);
}

Journey::Shard MpiLevel::part_of(size_t count) const {
  const Journey journey = levels_[0].journey(nullptr, count, DType::uint8, Op::sum);
  return journey.shard(journey.rank);
}

// Sums, and what goes on to other racks, are in memory of the host.
void MpiLevel::plan_allreduce_on_gpu(Crossing& crossing, uint8_t* data, size_t count, uint8_t* mine,
                                     DType dtype, Op op, const std::vector<double>& factors) {
  OnGpu there{levels_[0].journey(data, count, dtype, op), mine, {}};
  for (size_t host : hosts_) {
    if (!factors.empty()) there.factors.push_back(factors[host]);
  }
  const DType wide = accumulator_of(dtype);
  crossing.count = part_of(count).count;
  crossing.data.resize(crossing.count * size_of(wide));
  add_reduce_scatter_from_gpu(there, crossing);
  plan(1, crossing, crossing.data.data(), crossing.count, wide, op);
  add_all_gather_to_gpu(there, crossing);
}

void MpiLevel::plan_broadcast(Crossing& crossing, uint8_t* data, size_t bytes, int root) const {
  crossing.add("broadcast across hosts", [=, &crossing] {
    if (rank_ != root) return crossing.receive(across_, data, bytes, root);
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != root) crossing.send(across_, data, bytes, peer);
    }
  });
}

}  // namespace easyddl
