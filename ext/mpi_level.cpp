#include "mpi_level.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "check.h"
#include "reduce.h"
#include "trace.h"

namespace easyddl {
namespace {

// Below this a message costs its latency, and one round of whole messages beats two of shards.
constexpr size_t kWholeBytes = 8192;
constexpr int kTag = 1;

struct Range {
  size_t begin, count;
};

Range shard(size_t count, int index, int shards) {
  const size_t n = static_cast<size_t>(shards), i = static_cast<size_t>(index);
  const size_t begin = count * i / n;
  return {begin, count * (i + 1) / n - begin};
}

}  // namespace

MpiLevel::MpiLevel(MPI_Comm comm, bool cores_are_shared)
    : comm_(comm), cores_are_shared_(cores_are_shared) {
  if (comm_ == MPI_COMM_NULL) return;
  EASYDDL_MPI(MPI_Comm_rank, comm_, &rank_);
  EASYDDL_MPI(MPI_Comm_size, comm_, &size_);
}

void MpiLevel::send(const void* data, size_t bytes, int to) {
  requests_.emplace_back();
  EASYDDL_MPI(MPI_Isend, data, static_cast<int>(bytes), MPI_BYTE, to, kTag, comm_,
              &requests_.back());
}

void MpiLevel::receive(void* data, size_t bytes, int from) {
  requests_.emplace_back();
  EASYDDL_MPI(MPI_Irecv, data, static_cast<int>(bytes), MPI_BYTE, from, kTag, comm_,
              &requests_.back());
}

void MpiLevel::finish(const Idle& idle) {
  const Span span("wait across hosts");
  wait_requests(requests_.data(), static_cast<int>(requests_.size()), cores_are_shared_, idle);
  requests_.clear();
}

std::vector<uint64_t> MpiLevel::all_gather(uint64_t value, const Idle& idle) {
  const Span span("agree across hosts");
  std::vector<uint64_t> all(static_cast<size_t>(size_), value);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    receive(&all[static_cast<size_t>(peer)], sizeof value, peer);
    send(&value, sizeof value, peer);
  }
  finish(idle);
  return all;
}

void MpiLevel::allreduce(void* data, size_t count, DType dtype, Op op, const Idle& idle) {
  if (size_ == 1 || count == 0) return;
  const Span span("allreduce across hosts", count * size_of(dtype));
  const bool whole = count * size_of(dtype) <= kWholeBytes;
  auto* bytes = static_cast<uint8_t*>(data);
  whole ? exchange_whole(bytes, count, dtype, op, idle)
        : exchange_shards(bytes, count, dtype, op, idle);
}

// Every member gets everything and reduces all of it itself.
void MpiLevel::exchange_whole(uint8_t* data, size_t count, DType dtype, Op op, const Idle& idle) {
  const size_t bytes = count * size_of(dtype);
  inbox_.resize(bytes * static_cast<size_t>(size_));
  std::vector<const void*> sources;
  for (int peer = 0; peer < size_; ++peer) {
    uint8_t* from_peer = inbox_.data() + bytes * static_cast<size_t>(peer);
    sources.push_back(peer == rank_ ? data : from_peer);
    if (peer == rank_) continue;
    receive(from_peer, bytes, peer);
    send(data, bytes, peer);
  }
  finish(idle);
  total_.resize(bytes);
  accumulate(total_.data(), sources.data(), sources.size(), count, dtype, op);
  std::memcpy(data, total_.data(), bytes);
}

// Reduce-scatter, then all-gather, each member's shard straight to and from its owner: the
// same 2(n-1)/n of the data that a ring sends, in two rounds instead of 2(n-1).
void MpiLevel::exchange_shards(uint8_t* data, size_t count, DType dtype, Op op, const Idle& idle) {
  std::optional<Span> stage(std::in_place, "reduce-scatter across hosts");
  const size_t element = size_of(dtype);
  const Range mine = shard(count, rank_, size_);
  uint8_t* my_data = data + mine.begin * element;
  inbox_.resize(mine.count * element * static_cast<size_t>(size_));
  std::vector<const void*> sources;
  for (int peer = 0; peer < size_; ++peer) {
    uint8_t* from_peer = inbox_.data() + mine.count * element * static_cast<size_t>(peer);
    sources.push_back(peer == rank_ ? my_data : from_peer);
    if (peer == rank_) continue;
    const Range theirs = shard(count, peer, size_);
    receive(from_peer, mine.count * element, peer);
    send(data + theirs.begin * element, theirs.count * element, peer);
  }
  finish(idle);
  total_.resize(mine.count * element);
  accumulate(total_.data(), sources.data(), sources.size(), mine.count, dtype, op);
  std::memcpy(my_data, total_.data(), total_.size());
  stage.emplace("all-gather across hosts");
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range theirs = shard(count, peer, size_);
    receive(data + theirs.begin * element, theirs.count * element, peer);
    send(my_data, mine.count * element, peer);
  }
  finish(idle);
}

void MpiLevel::broadcast(void* data, size_t bytes, int root, const Idle& idle) {
  if (bytes == 0) return;
  const Span span("broadcast across hosts", bytes);
  if (rank_ == root) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != root) send(data, bytes, peer);
    }
  } else {
    receive(data, bytes, root);
  }
  finish(idle);
}

}  // namespace easyddl
