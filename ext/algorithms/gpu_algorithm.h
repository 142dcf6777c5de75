// The algorithms that reduce arrays in GPU memory, and their costs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace easyddl {

enum class GpuAlgorithm {
  nccl,          // NCCL over all ranks
  hierarchical,  // NCCL within a host; MPI across hosts, from host or GPU memory
  host,          // copies to host memory, and reduces them as CPU arrays
};

// Throws for an unknown name. Returns std::nullopt for an empty name, which leaves the choice to
// `cheapest_gpu_algorithm`.
std::optional<GpuAlgorithm> parse_gpu_algorithm(const std::string& name);

// The facts of a job's topology that determine the cost.
struct GpuTopology {
  int ranks, hosts;
  int most_on_a_host;  // the most ranks on one host
  int leaders;         // ranks of each host that reduce a shard across hosts
};

// Returns the algorithm with the lowest cost, by the bytes that leave a host and the cost of
// copies. It depends on nothing else, so that the bits of a result are the same in every run.
GpuAlgorithm cheapest_gpu_algorithm(size_t bytes, const GpuTopology& gpu_topology);

}  // namespace easyddl
