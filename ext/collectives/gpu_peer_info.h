// The description of each rank's GPU, which the ranks compare before they connect NCCL.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/cuda_driver.h"
#include "runtime/topology.h"

namespace easyddl {

// The first version of NCCL that can serve several ranks on one GPU, if NCCL_MULTI_RANK_GPU_ENABLE
// is 1.
constexpr int kFirstNcclWithSharedGpus = 23000;

// What a rank sends to the others before they connect.
struct GpuPeerInfo {
  std::array<char, 768> failure;  // why the rank cannot take part; empty if it can
  std::array<char, 64> host_id;   // NCCL_HOSTID
  std::array<char, 320> machine;
  std::array<char, 32> bus;         // the GPU's PCI bus id
  CudaUuid uuid;                    // of the GPU, or of its instance (MIG)
  int32_t version;                  // of NCCL
  int32_t may_share_gpu;            // NCCL's environment variables permit it
  int32_t is_new_gpu;               // the rank has set up no GPU, or another one
  int32_t lacks_world, lacks_host;  // the rank has no such NCCL communicator

  bool is_on_gpu_of(const GpuPeerInfo& other) const {
    const bool is_same = std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
    return is_same || (machine == other.machine && bus == other.bus);
  }
};

// Returns the name by which NCCL distinguishes machines. It is the same for several hosts that are
// simulated on one machine.
std::string machine_name();

// Throws an Error, the same on all ranks, if any rank cannot take part. With `with_nccl`, it also
// throws one if the ranks have different versions of NCCL, or share a GPU and NCCL does not permit
// it. Returns a note for the user, such as that two ranks share a GPU; empty for none.
std::string require_compatible(const std::vector<GpuPeerInfo>& all, const Topology& topology,
                               bool with_nccl);

}  // namespace easyddl
