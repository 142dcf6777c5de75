// The ways of arrays that lie on GPUs, and what each costs.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace easyddl {

enum class GpuWay {
  nccl,          // NCCL among all ranks
  hierarchical,  // NCCL within a host; across hosts MPI, from their memory or the GPUs'
  host,          // all through the hosts' memory, as arrays of the CPU go
};

// Throws for an unknown name. An empty one leaves the choice to `cheapest_gpu_way`.
std::optional<GpuWay> gpu_way_named(const std::string& name);

// What of a job's topology matters to the cost.
struct GpuPlaces {
  int ranks, hosts;
  int most_on_a_host;  // ranks
  int carriers;        // ranks of a host that take a shard each across hosts
};

// By how many bytes leave a host each way, and what copying them costs. It depends on nothing
// else, so that the bits of a result are the same in every run.
GpuWay cheapest_gpu_way(size_t bytes, const GpuPlaces& places);

}  // namespace easyddl
