// The algorithms that reduce arrays that lie on GPUs, and the cost of each.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace easyddl {

enum class GpuAlgorithm {
  nccl,          // NCCL among all ranks
  hierarchical,  // NCCL within a host; across hosts MPI, from their memory or the GPUs'
  host,          // all through the hosts' memory, as arrays of the CPU go
};

// Throws for an unknown name. An empty one leaves the choice to `cheapest_gpu_algorithm`.
std::optional<GpuAlgorithm> parse_gpu_algorithm(const std::string& name);

// What of a job's topology matters to the cost.
struct GpuTopology {
  int ranks, hosts;
  int most_on_a_host;  // ranks
  int leaders;         // ranks of a host that take a shard each across hosts
};

// Compares how many bytes leave a host, and what copying them costs. It depends on nothing
// else, so that the bits of a result are the same in every run.
GpuAlgorithm cheapest_gpu_algorithm(size_t bytes, const GpuTopology& gpu_topology);

}  // namespace easyddl
