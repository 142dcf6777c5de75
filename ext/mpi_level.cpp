#include "mpi_level.h"

#include <utility>

#include "check.h"
#include "trace.h"

namespace easyddl {
namespace {

constexpr int kTag = 1;

Comm duplicate(const Comm& comm) {
  return comm.get() == MPI_COMM_NULL ? Comm() : Comm::duplicate(comm.get());
}

}  // namespace

MpiLevel::Members::Members(Comm c, int owner_count) : comm(std::move(c)), owners(owner_count) {
  if (comm.get() == MPI_COMM_NULL) return;
  rank = comm.rank();
  size = comm.size();
}

Journey MpiLevel::Members::journey(uint8_t* data, size_t count, DType dtype, Op op) const {
  return {comm.get(), rank, size, owners, data, count, dtype, op};
}

MpiLevel::MpiLevel(const Layout& layout, std::optional<Route> route)
    : across_(duplicate(layout.across)), route_(route), cores_are_shared_(layout.cores_are_shared) {
  if (across_.get() == MPI_COMM_NULL) return;
  rank_ = across_.rank();
  size_ = across_.size();
  for (size_t host = 0; host < layout.rack_of.size(); ++host) {
    if (layout.rack_of[host] == layout.rack_of[static_cast<size_t>(rank_)]) hosts_.push_back(host);
  }
  if (layout.num_racks == 1) {
    levels_.emplace_back(duplicate(layout.across), layout.num_nodes);
  } else {
    levels_.emplace_back(duplicate(layout.in_rack), layout.num_rack_carriers);
    levels_.emplace_back(duplicate(layout.across_racks), layout.num_racks);
  }
}

void MpiLevel::finish(std::vector<MPI_Request>& requests, const Idle& idle) {
  const Span span("wait across hosts");
  wait_requests(requests.data(), static_cast<int>(requests.size()), cores_are_shared_, idle);
}

std::vector<uint64_t> MpiLevel::all_gather(uint64_t value, const Idle& idle) {
  const Span span("agree across hosts");
  std::vector<uint64_t> all(static_cast<size_t>(size_), value);
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    requests.resize(requests.size() + 2);
    EASYDDL_MPI(MPI_Irecv, &all[static_cast<size_t>(peer)], 1, MPI_UINT64_T, peer, kTag,
                across_.get(), &requests[requests.size() - 2]);
    EASYDDL_MPI(MPI_Isend, &value, 1, MPI_UINT64_T, peer, kTag, across_.get(), &requests.back());
  }
  finish(requests, idle);
  return all;
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

void MpiLevel::broadcast(void* data, size_t bytes, int root, const Idle& idle) {
  if (bytes == 0) return;
  const Span span("broadcast across hosts", bytes);
  std::vector<MPI_Request> requests;
  const int count = static_cast<int>(bytes);
  for (int peer = 0; rank_ == root && peer < size_; ++peer) {
    if (peer == root) continue;
    requests.emplace_back();
    EASYDDL_MPI(MPI_Isend, data, count, MPI_BYTE, peer, kTag, across_.get(), &requests.back());
  }
  if (rank_ != root) {
    requests.emplace_back();
    EASYDDL_MPI(MPI_Irecv, data, count, MPI_BYTE, root, kTag, across_.get(), &requests.back());
  }
  finish(requests, idle);
}

}  // namespace easyddl
