#include "mpi_level.h"

#include <algorithm>
#include <cstring>

#include "check.h"
#include "reduce.h"
#include "trace.h"
#include "wait.h"

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

// True once all requests have ended; they are forgotten then.
bool have_ended(std::vector<MPI_Request>& requests) {
  int flag = 0;
  EASYDDL_MPI(MPI_Testall, static_cast<int>(requests.size()), requests.data(), &flag,
              MPI_STATUSES_IGNORE);
  if (flag != 0) requests.clear();
  return flag != 0;
}

}  // namespace

MpiLevel::MpiLevel(MPI_Comm comm, bool cores_are_shared)
    : comm_(comm), cores_are_shared_(cores_are_shared) {
  if (comm_ == MPI_COMM_NULL) return;
  EASYDDL_MPI(MPI_Comm_rank, comm_, &rank_);
  EASYDDL_MPI(MPI_Comm_size, comm_, &size_);
}

void MpiLevel::send(const void* data, size_t bytes, int to, std::vector<MPI_Request>& requests) {
  requests.emplace_back();
  EASYDDL_MPI(MPI_Isend, data, static_cast<int>(bytes), MPI_BYTE, to, kTag, comm_,
              &requests.back());
}

void MpiLevel::receive(void* data, size_t bytes, int from, std::vector<MPI_Request>& requests) {
  requests.emplace_back();
  EASYDDL_MPI(MPI_Irecv, data, static_cast<int>(bytes), MPI_BYTE, from, kTag, comm_,
              &requests.back());
}

void MpiLevel::finish(std::vector<MPI_Request>& requests, const Idle& idle) {
  const Span span("wait across hosts");
  poll([&] { return have_ended(requests); }, cores_are_shared_, idle);
}

std::vector<uint64_t> MpiLevel::all_gather(uint64_t value, const Idle& idle) {
  const Span span("agree across hosts");
  std::vector<uint64_t> all(static_cast<size_t>(size_), value);
  std::vector<MPI_Request> requests;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    receive(&all[static_cast<size_t>(peer)], sizeof value, peer, requests);
    send(&value, sizeof value, peer, requests);
  }
  finish(requests, idle);
  return all;
}

void MpiLevel::allreduce(Crossing& crossing, DType dtype, Op op, const Idle& idle) {
  if (size_ == 1 || crossing.count == 0) return;
  const Span span("allreduce across hosts", crossing.count * size_of(dtype));
  if (crossing.count * size_of(dtype) <= kWholeBytes) {
    exchange_whole(crossing, dtype, op, idle);
    return;
  }
  scatter(crossing, dtype);
  gather(crossing, dtype, op, idle);
  collect(crossing, idle);
}

// Every member gets everything and reduces all of it itself.
void MpiLevel::exchange_whole(Crossing& crossing, DType dtype, Op op, const Idle& idle) {
  const size_t bytes = crossing.count * size_of(dtype);
  uint8_t* data = crossing.data.data();
  crossing.inbox.resize(bytes * static_cast<size_t>(size_));
  std::vector<const void*> sources;
  for (int peer = 0; peer < size_; ++peer) {
    uint8_t* from_peer = crossing.inbox.data() + bytes * static_cast<size_t>(peer);
    sources.push_back(peer == rank_ ? data : from_peer);
    if (peer == rank_) continue;
    receive(from_peer, bytes, peer, crossing.requests);
    send(data, bytes, peer, crossing.requests);
  }
  finish(crossing.requests, idle);
  total_.resize(bytes);
  accumulate(total_.data(), sources.data(), sources.size(), crossing.count, dtype, op);
  std::memcpy(data, total_.data(), bytes);
}

// Reduce-scatter, then all-gather, each member's shard straight to and from its owner: the
// same 2(n-1)/n of the data that a ring sends, in two rounds instead of 2(n-1).
void MpiLevel::scatter(Crossing& crossing, DType dtype) {
  const Span span("reduce-scatter across hosts", crossing.count * size_of(dtype));
  const size_t element = size_of(dtype);
  const size_t mine = shard(crossing.count, rank_, size_).count * element;
  crossing.inbox.resize(mine * static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range theirs = shard(crossing.count, peer, size_);
    receive(crossing.inbox.data() + mine * static_cast<size_t>(peer), mine, peer,
            crossing.requests);
    send(crossing.data.data() + theirs.begin * element, theirs.count * element, peer,
         crossing.requests);
  }
}

void MpiLevel::gather(Crossing& crossing, DType dtype, Op op, const Idle& idle) {
  const Span span("all-gather across hosts", crossing.count * size_of(dtype));
  finish(crossing.requests, idle);
  const size_t element = size_of(dtype);
  const Range mine = shard(crossing.count, rank_, size_);
  const size_t bytes = mine.count * element;
  uint8_t* my_data = crossing.data.data() + mine.begin * element;
  std::vector<const void*> sources;
  for (int peer = 0; peer < size_; ++peer) {
    sources.push_back(peer == rank_ ? my_data
                                    : crossing.inbox.data() + bytes * static_cast<size_t>(peer));
  }
  total_.resize(bytes);
  accumulate(total_.data(), sources.data(), sources.size(), mine.count, dtype, op);
  std::memcpy(my_data, total_.data(), bytes);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Range theirs = shard(crossing.count, peer, size_);
    receive(crossing.data.data() + theirs.begin * element, theirs.count * element, peer,
            crossing.requests);
    send(my_data, bytes, peer, crossing.requests);
  }
}

void MpiLevel::collect(Crossing& crossing, const Idle& idle) { finish(crossing.requests, idle); }

bool MpiLevel::progress(Crossing& crossing) { return have_ended(crossing.requests); }

void MpiLevel::broadcast(void* data, size_t bytes, int root, const Idle& idle) {
  if (bytes == 0) return;
  const Span span("broadcast across hosts", bytes);
  std::vector<MPI_Request> requests;
  if (rank_ == root) {
    for (int peer = 0; peer < size_; ++peer) {
      if (peer != root) send(data, bytes, peer, requests);
    }
  } else {
    receive(data, bytes, root, requests);
  }
  finish(requests, idle);
}

}  // namespace easyddl
