#include "collectives/array_exchange.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

namespace easyddl {
namespace {

// Returns the offsets of arrays that are stored one after the other.
std::vector<size_t> starts_of(const std::vector<int64_t>& bytes) {
  std::vector<size_t> starts;
  size_t start = 0;
  for (int64_t each : bytes) {
    starts.push_back(start);
    start += static_cast<size_t>(each);
  }
  return starts;
}

// MPI and ChunkStream only read what they send.
uint8_t* writable(const void* data) {
  return const_cast<uint8_t*>(static_cast<const uint8_t*>(data));
}

// Returns the ranks in the order of the ring, in which the ranks of a host are neighbours.
std::vector<int> ring_of(const Topology& topology) {
  std::vector<int> ring(static_cast<size_t>(topology.size));
  std::iota(ring.begin(), ring.end(), 0);
  std::stable_sort(ring.begin(), ring.end(), [&](int a, int b) {
    return topology.node_of[static_cast<size_t>(a)] < topology.node_of[static_cast<size_t>(b)];
  });
  return ring;
}

}  // namespace

void gather_arrays(CollectiveContext& context, const void* in, void* out,
                   const std::vector<int64_t>& bytes) {
  const Topology& topology = context.topology();
  const int n = topology.size;
  const std::vector<int> ring = ring_of(topology);
  const int place =
      static_cast<int>(std::find(ring.begin(), ring.end(), topology.rank) - ring.begin());
  const auto member = [&](int offset) {
    return ring[static_cast<size_t>((place + offset + n) % n)];
  };
  const std::vector<size_t> starts = starts_of(bytes);
  const auto array = [&](int peer, int owner) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(owner);
    return {peer, static_cast<uint8_t*>(out) + starts[i], static_cast<size_t>(bytes[i])};
  };
  const ChunkStream::Array own = array(member(1), topology.rank);
  if (own.bytes > 0 && own.data != in) std::memcpy(own.data, in, own.bytes);
  std::vector<ChunkStream::Array> outgoing, incoming;
  for (int round = 0; round + 1 < n; ++round) {
    outgoing.push_back(array(member(1), member(-round)));
    incoming.push_back(array(member(-1), member(-round - 1)));
  }
  context.transfer(std::move(outgoing), std::move(incoming), own.bytes);
}

void exchange_arrays(CollectiveContext& context, const void* in, void* out,
                     const std::vector<int64_t>& sends, const std::vector<int64_t>& receives) {
  const int n = context.topology().size, own_rank = context.topology().rank;
  const std::vector<size_t> from = starts_of(sends), to = starts_of(receives);
  const auto array_to = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, writable(in) + from[i], static_cast<size_t>(sends[i])};
  };
  const auto array_from = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, static_cast<uint8_t*>(out) + to[i], static_cast<size_t>(receives[i])};
  };
  const ChunkStream::Array own = array_to(own_rank);
  if (own.bytes > 0) std::memcpy(array_from(own_rank).data, own.data, own.bytes);
  std::vector<ChunkStream::Array> outgoing, incoming;
  for (int round = 1; round < n; ++round) {
    outgoing.push_back(array_to((own_rank + round) % n));
    incoming.push_back(array_from((own_rank + n - round) % n));
  }
  context.transfer(std::move(outgoing), std::move(incoming));
}

}  // namespace easyddl
