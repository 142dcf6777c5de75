#include "algorithms/gpu_algorithm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "common/check.h"

namespace easyddl {
namespace {

// Rough bandwidths in bytes per second: between hosts, at 100 Gbit/s; between the GPUs of a host;
// between a GPU and host memory; and of a core that copies and sums data.
constexpr double kWire = 12.5e9, kLink = 100e9, kBus = 20e9, kCore = 4e9;
// Rough latencies in seconds: to launch work on a GPU and see that it is done; and of a message
// between hosts.
constexpr double kLaunch = 20e-6, kMessage = 20e-6;

double rounds(int members) { return members > 1 ? 2 * std::ceil(std::log2(members)) : 0; }

// Returns how many bytes a member sends for each byte of data in a ring of n members, or in any
// other bandwidth-optimal algorithm.
double ring(int members) { return 2.0 * (members - 1) / members; }

double cost(GpuAlgorithm algorithm, double bytes, const GpuTopology& p) {
  const double across = rounds(p.hosts) * kMessage;
  const double between_hosts = ring(p.hosts) * bytes / kWire;
  switch (algorithm) {
    case GpuAlgorithm::nccl:
      // One ring over all ranks, in the order of the hosts, so that the ring leaves each host once.
      if (p.hosts == 1) return kLaunch + ring(p.ranks) * bytes / kLink;
      return kLaunch + across + ring(p.ranks) * bytes / kWire;
    case GpuAlgorithm::hierarchical: {
      const double shard = bytes / p.leaders;
      const double pipelined = std::max({between_hosts, 2 * shard / kBus, shard / kCore});
      return 4 * kLaunch + across + ring(p.most_on_a_host) * bytes / kLink + pipelined;
    }
    case GpuAlgorithm::host:
      // All ranks of a host use shared memory, and reduce a shard each.
      return 2 * kLaunch + across + 2 * bytes / kBus + 3 * bytes / kCore + between_hosts;
  }
  throw Error("Unknown algorithm.");
}

}  // namespace

std::optional<GpuAlgorithm> parse_gpu_algorithm(const std::string& name) {
  if (name.empty()) return std::nullopt;
  if (name == "nccl") return GpuAlgorithm::nccl;
  if (name == "hierarchical") return GpuAlgorithm::hierarchical;
  if (name == "host") return GpuAlgorithm::host;
  throw Error("EASYDDL_GPU must be one of nccl, hierarchical and host. Received: '" + name + "'");
}

GpuAlgorithm cheapest_gpu_algorithm(size_t bytes, const GpuTopology& gpu_topology) {
  GpuAlgorithm best = GpuAlgorithm::nccl;
  for (GpuAlgorithm algorithm : {GpuAlgorithm::hierarchical, GpuAlgorithm::host}) {
    if (algorithm == GpuAlgorithm::hierarchical && gpu_topology.hosts == 1) continue;
    const double size = static_cast<double>(bytes);
    if (cost(algorithm, size, gpu_topology) < cost(best, size, gpu_topology)) best = algorithm;
  }
  return best;
}

}  // namespace easyddl
