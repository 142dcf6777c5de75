// Collectives in which each pair of ranks may exchange another amount of data.
#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/communicator.h"
#include "collectives/communicator_call.h"
#include "collectives/signal_guard.h"
#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {

namespace {

// Where each of the arrays begins that lie one after the other.
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

}  // namespace

// Between the halves of a collective whose first tells how much memory the second needs. The second
// has a fingerprint of its own, so that it never meets a first half. A rank that has no memory
// takes part in the second too, saying so: all fail alike then, and can go on.
void* Communicator::memory_of_all(const Fingerprint& fingerprint,
                                  const std::vector<int64_t>& counts, const Allocate& allocate) {
  std::string failure;
  void* memory = nullptr;
  try {
    const Interruption interruption(fingerprint.text);  // Python may act on a signal in it
    memory = allocate(counts);
  } catch (const Error& error) {
    failure = error.what();
  } catch (const std::bad_alloc&) {
    failure = "out of memory";
  }
  const Fingerprint second(fingerprint.text + (failure.empty()
                                                   ? ", its second half"
                                                   : ", which failed there: " + failure));
  fingerprint_ = &second;
  struct Restore {  // `second` ends here
    const Fingerprint*& current;
    const Fingerprint* before;
    ~Restore() { current = before; }
  } restore{fingerprint_, &fingerprint};
  rendezvous(second);
  if (!failure.empty()) {  // on all ranks, and in the same words
    broken_ = false;
    throw Error(failure);
  }
  return memory;
}

void Communicator::all_gather(const void* in, int64_t count, size_t unit_bytes,
                              const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("all-gather", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    std::vector<int64_t> counts = values_of_all(count);
    void* const out = memory_of_all(fingerprint, counts, allocate);
    for (int64_t& each : counts) each *= static_cast<int64_t>(unit_bytes);
    gather_arrays(in, out, counts);
  });
}

void Communicator::all_gather(const void* in, void* out, const std::vector<int64_t>& counts,
                              size_t unit_bytes, const Fingerprint& fingerprint) {
  std::vector<int64_t> bytes = counts;
  for (int64_t& each : bytes) each *= static_cast<int64_t>(unit_bytes);
  collective("all-gather", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    gather_arrays(in, out, bytes);
  });
}

void Communicator::all_to_all(const void* in, const std::vector<int64_t>& sends, size_t unit_bytes,
                              const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("all-to-all", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    std::vector<int64_t> receives(sends.size()), leaving = sends;
    const std::vector<int64_t> one_each(sends.size(), sizeof(int64_t));
    exchange_arrays(sends.data(), receives.data(), one_each, one_each);
    void* const out = memory_of_all(fingerprint, receives, allocate);
    for (int64_t& each : leaving) each *= static_cast<int64_t>(unit_bytes);
    for (int64_t& each : receives) each *= static_cast<int64_t>(unit_bytes);
    exchange_arrays(in, out, leaving, receives);
  });
}

void Communicator::reduce_scatter(const void* in, void* out, size_t count, DType dtype, Op op,
                                  const Fingerprint& fingerprint) {
  const size_t part = count * size_of(dtype), size = static_cast<size_t>(topology_.size);
  const std::vector<int64_t> parts(size, static_cast<int64_t>(part));
  std::vector<uint8_t> inbox;
  collective("reduce-scatter", part * size, fingerprint, [&] {
    rendezvous(fingerprint);
    memory_of_all(fingerprint, parts, [&](const std::vector<int64_t>&) {
      inbox.resize(part * size);
      return inbox.data();
    });
    exchange_arrays(in, inbox.data(), parts, parts);
    std::vector<const void*> sources;
    for (size_t rank = 0; rank < size; ++rank) sources.push_back(inbox.data() + rank * part);
    accumulate_and_finish(out, sources.data(), size, count, dtype, op, topology_.size);
  });
}

// Round a ring: each rank hands on what it has got, so that every array leaves a host once. The
// ranks of a host stand side by side in it.
void Communicator::gather_arrays(const void* in, void* out, const std::vector<int64_t>& bytes) {
  const int n = topology_.size;
  std::vector<int> ring(static_cast<size_t>(n));
  std::iota(ring.begin(), ring.end(), 0);
  std::stable_sort(ring.begin(), ring.end(), [this](int a, int b) {
    return topology_.node_of[static_cast<size_t>(a)] < topology_.node_of[static_cast<size_t>(b)];
  });
  const int place =
      static_cast<int>(std::find(ring.begin(), ring.end(), topology_.rank) - ring.begin());
  const auto member = [&](int offset) {
    return ring[static_cast<size_t>((place + offset + n) % n)];
  };
  const std::vector<size_t> starts = starts_of(bytes);
  const auto array = [&](int peer, int owner) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(owner);
    return {peer, static_cast<uint8_t*>(out) + starts[i], static_cast<size_t>(bytes[i])};
  };
  const ChunkStream::Array own = array(member(1), topology_.rank);
  if (own.bytes > 0 && own.data != in) std::memcpy(own.data, in, own.bytes);
  std::vector<ChunkStream::Array> leaving, coming;
  for (int round = 0; round + 1 < n; ++round) {
    leaving.push_back(array(member(1), member(-round)));
    coming.push_back(array(member(-1), member(-round - 1)));
  }
  travel(std::move(leaving), std::move(coming), own.bytes);
}

// Straight from each rank to each, in rounds in which all have other partners.
void Communicator::exchange_arrays(const void* in, void* out, const std::vector<int64_t>& sends,
                                   const std::vector<int64_t>& receives) {
  const int n = topology_.size;
  const std::vector<size_t> from = starts_of(sends), to = starts_of(receives);
  const auto leaving_to = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, writable(in) + from[i], static_cast<size_t>(sends[i])};
  };
  const auto coming_from = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, static_cast<uint8_t*>(out) + to[i], static_cast<size_t>(receives[i])};
  };
  const ChunkStream::Array own = leaving_to(topology_.rank);
  if (own.bytes > 0) std::memcpy(coming_from(topology_.rank).data, own.data, own.bytes);
  std::vector<ChunkStream::Array> leaving, coming;
  for (int round = 1; round < n; ++round) {
    leaving.push_back(leaving_to((topology_.rank + round) % n));
    coming.push_back(coming_from((topology_.rank + n - round) % n));
  }
  travel(std::move(leaving), std::move(coming), SIZE_MAX);
}

// Where what leaves is what has come before, only `own` bytes of it are there from the beginning.
void Communicator::travel(std::vector<ChunkStream::Array> leaving,
                          std::vector<ChunkStream::Array> coming, size_t own) {
  const Span span("wait for all ranks");
  leaving_.begin(std::move(leaving));
  coming_.begin(std::move(coming));
  const auto done = [&] {
    const bool all_came = coming_.advance();
    const bool all_left = leaving_.advance(own == SIZE_MAX ? own : own + coming_.done());
    return all_came && all_left;
  };
  poll(done, topology_.cores_are_shared, idle_);
  leaving_.release();
  coming_.release();
}

}  // namespace easyddl
