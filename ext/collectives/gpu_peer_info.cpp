#include "collectives/gpu_peer_info.h"

#include <unistd.h>

#include <fstream>

#include "common/check.h"
#include "gpu/nccl_library.h"

namespace easyddl {
namespace {

// By default NCCL refuses to serve two ranks of a host that share a GPU, with an error that names
// neither rank. It accepts them if NCCL_MULTI_RANK_GPU_ENABLE is 1 on both, or if their
// NCCL_HOSTIDs differ. NCCL compares the PCI bus ids of the GPUs, so two instances of one GPU (MIG)
// count as the same GPU.
std::string refuse_shared_gpus(const std::vector<GpuPeerInfo>& all, const Topology& topology) {
  for (size_t b = 1; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!all[a].is_on_gpu_of(all[b])) continue;
      const bool are_instances = std::memcmp(&all[a].uuid, &all[b].uuid, sizeof(CudaUuid)) != 0;
      const std::string text = topology.capitalized_name_of(a) + " and " +
                               topology.capitalized_name_of(b) + " share one GPU" +
                               (are_instances ? ", of which each has an instance (MIG)" : "");
      const bool is_allowed = (all[a].may_share_gpu != 0 && all[b].may_share_gpu != 0) ||
                              all[a].host_id != all[b].host_id;
      if (!is_allowed) {
        throw Error(
            text +
            ", which NCCL refuses. Start at most one rank for each GPU of a host, and let each "
            "rank "
            "see its own GPU. For a trial on a shared GPU, set NCCL_MULTI_RANK_GPU_ENABLE=1 "
            "(NCCL 2.30 and later), or a different NCCL_HOSTID on each rank (earlier "
            "versions), or EASYDDL_GPU=host, which does not use NCCL. This is NCCL " +
            nccl_version_text(all[a].version) + ".");
      }
      return text + ", which slows down both.";
    }
  }
  return "";
}

}  // namespace

std::string require_compatible(const std::vector<GpuPeerInfo>& all, const Topology& topology,
                               bool with_nccl) {
  std::string text;
  size_t others = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    if (text.empty()) {
      text = topology.capitalized_name_of(rank) + " cannot reduce gradients on its GPU: " + failure;
    } else {
      ++others;
    }
  }
  if (others > 0) text += " (" + std::to_string(others) + " more rank(s) also failed.)";
  if (!text.empty()) throw Error(text);
  if (!with_nccl) return "";
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version == all[0].version) continue;
    throw Error("The ranks have different versions of NCCL: " + topology.capitalized_name_of(0) +
                " has " + nccl_version_text(all[0].version) + ", " +
                topology.capitalized_name_of(rank) + " has " +
                nccl_version_text(all[rank].version) + ". Install the same version on all hosts.");
  }
  return refuse_shared_gpus(all, topology);
}

std::string machine_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + ' ' + boot;
}

}  // namespace easyddl
