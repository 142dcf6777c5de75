// The algorithms that reduce data across hosts, and their costs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "arrays/dtype.h"
#include "mpi/mpi.h"

namespace easyddl {

// The cost of a message and what it costs its sender, in bytes that the network transfers in the
// same time: 25 us at 10 Gbit/s, 250 us at 1 Gbit/s. The product of latency and bandwidth differs
// much less between networks than either of them.
inline constexpr double kLatencyBytes = 32 << 10;
inline constexpr double kSenderBytes = 2 << 10;

// By how much the bytes of a member take longer for each further member to which it sends at the
// same time: connections share a link unevenly, and a round lasts as long as the slowest of them.
inline constexpr double kUnevenness = 0.08;

enum class InterHostAlgorithm {
  whole,    // each host sends all data to all others: one round of messages
  direct,   // each shard is sent directly to its owner, and its sum back: two rounds
  halving,  // recursive halving and doubling: 2 log2(n) rounds
  ring,     // each host sends only to its neighbour: 2(n-1) rounds
};

// Returns nothing for an unknown name.
std::optional<InterHostAlgorithm> inter_host_algorithm_named(const std::string& name);
const char* name_of(InterHostAlgorithm algorithm);

// A reduction across hosts: its members and its data. The first `owners` members own a shard each.
struct InterHostOperation {
  MPI_Comm comm;
  int rank, size, owners;
  uint8_t* data;  // the schedule's data
  size_t count;
  DType dtype;  // the type of an accumulator
  Op op;
  bool is_last = false;  // no other level continues with the owners' shards
  // The type of the elements in messages, and memory for `count` of them. Null if they have
  // `dtype`.
  DType wire_dtype = dtype;
  uint8_t* wire = nullptr;

  struct Shard {
    size_t begin, count;
  };
  Shard shard(int owner) const;
  size_t bytes(size_t elements) const { return elements * size_of(dtype); }
  uint8_t* at(size_t element) const { return data + bytes(element); }

  // The bytes of elements in a message, and the address from which they are sent.
  size_t wire_bytes(size_t elements) const { return elements * size_of(wire_dtype); }
  uint8_t* wire_at(size_t element) const {
    return wire == nullptr ? at(element) : wire + wire_bytes(element);
  }

  // Returns the operation on a part of the data.
  InterHostOperation part(Shard range) const;

  // Rounds a part of the data to the wire's type, and back. They do nothing without a wire.
  void round_to_wire(Shard range) const;
  void widen_from_wire(Shard range) const;
};

// Returns the algorithm with the lowest cost, by the latency of a message, the time that it takes
// its sender, and the bytes that a host must send: `bytes` has all elements as they are sent. It
// depends on nothing else, so that the order of a sum, and so its bits, are the same in every run.
// `easyddl plan` computes with the same functions.
InterHostAlgorithm cheapest_inter_host_algorithm(size_t bytes, int members);

// Returns the given algorithm if it leaves each owner the shard of InterHostOperation::shard after
// the reduce-scatter. Otherwise returns the one with the lowest cost among those that do.
InterHostAlgorithm algorithm_with_shards(InterHostAlgorithm algorithm,
                                         const InterHostOperation& operation);

// Returns whether the messages to one owner of `direct` cannot overflow the buffers of a switch:
// the senders are few, or send no more in all than few senders do at first.
bool direct_is_safe(const InterHostOperation& operation);

// Adds steps to the schedule after which the owner of each shard has its sum, or steps after which
// all members have all sums.
//
// With a wire, members send rounded elements, and add what they receive in the accumulator's type.
// An owner rounds its sum before it sends it, and keeps the rounded sum, so that all members have
// the same bits. Others forward it unchanged. Each element is rounded twice with `direct`; n times
// with `ring`; log2(n) + 1 times with `halving`, and once more if n is no power of two; and once
// with `whole`, where each member rounds its own elements, too.
void add_reduce_scatter(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                        Schedule& schedule);
void add_all_gather(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                    Schedule& schedule);

// The same for data in GPU memory, by InterHostAlgorithm::direct. MPI reads and writes the messages
// in GPU memory. Sums are computed in host memory: the caller has copied the own shard to `mine`;
// the sum is in the schedule's data, in the accumulator's type; and at the end `mine` holds the
// result, which the caller copies to the GPU.
struct GpuShardOperation {
  InterHostOperation operation;  // on the elements in GPU memory
  uint8_t* mine;
  std::vector<double> factors;  // by which the members' data must still be multiplied; may be empty
};
void add_reduce_scatter_from_gpu(const GpuShardOperation& shard, Schedule& schedule);
void add_all_gather_to_gpu(const GpuShardOperation& shard, Schedule& schedule);

// Adds reduce-scatter and all-gather in one, by InterHostAlgorithm::whole.
void add_whole(const InterHostOperation& operation, Schedule& schedule);

}  // namespace easyddl
