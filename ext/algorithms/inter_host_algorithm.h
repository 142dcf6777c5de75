// The algorithms that reduce data across hosts, and the cost of each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "algorithms/schedule.h"
#include "arrays/dtype.h"
#include "mpi/mpi.h"

namespace easyddl {

enum class InterHostAlgorithm {
  whole,    // everyone sends all to everyone: one round of messages
  direct,   // each shard straight to its owner, and its sum straight back: two rounds
  halving,  // recursive halving and doubling: 2 log2(n) rounds
  ring,     // from neighbour to neighbour: 2(n-1) rounds, no two of which meet at a host
};

// Throws for an unknown name. An empty one leaves the choice to `cheapest_inter_host_algorithm`.
InterHostAlgorithm parse_inter_host_algorithm(const std::string& name);

// Who takes part, and with what. The first `owners` members own a shard each.
struct InterHostOperation {
  MPI_Comm comm;
  int rank, size, owners;
  uint8_t* data;  // of the schedule
  size_t count;
  DType dtype;  // an accumulator's
  Op op;

  struct Shard {
    size_t begin, count;
  };
  Shard shard(int owner) const;
  size_t bytes(size_t elements) const { return elements * size_of(dtype); }
  uint8_t* at(size_t element) const { return data + bytes(element); }
};

// The algorithm that costs least for so many bytes, by the latency of a message, the time that each
// one takes its sender, and the bytes that a host must send. It depends on nothing else, so that
// the order of a sum, and with it its bits, are the same in every run.
InterHostAlgorithm cheapest_inter_host_algorithm(size_t bytes, int members);

// Whether `halving` leaves the owners the shards of an InterHostOperation. False if it divides the
// data differently.
bool halving_is_even(const InterHostOperation& operation);

// Adds steps to the schedule after which the owner of each shard has its sum; and then steps
// after which all have all sums.
void add_reduce_scatter(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                        Schedule& schedule);
void add_all_gather(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                    Schedule& schedule);

// The same for data that lies on a GPU, by InterHostAlgorithm::direct. MPI reads the messages from
// the GPU's memory and writes them there. Sums are the host's: `mine` is its memory for the own
// shard, which has been copied to it; then the schedule's data is the sum, in accumulators; and in
// the end `mine` is the result, which is not on the GPU yet.
struct GpuShardOperation {
  InterHostOperation operation;  // of the GPU's own elements
  uint8_t* mine;
  std::vector<double> factors;  // what the members' data is still to be multiplied by, or none
};
void add_reduce_scatter_from_gpu(const GpuShardOperation& there, Schedule& schedule);
void add_all_gather_to_gpu(const GpuShardOperation& there, Schedule& schedule);

// Reduce-scatter and all-gather in one, by InterHostAlgorithm::whole.
void add_whole(const InterHostOperation& operation, Schedule& schedule);

}  // namespace easyddl
