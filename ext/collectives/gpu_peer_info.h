// What the ranks tell each other of their GPUs before they connect them.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gpu/cuda_driver.h"
#include "runtime/topology.h"

namespace easyddl {

// From this version on NCCL can serve several ranks with one GPU, if NCCL_MULTI_RANK_GPU_ENABLE
// is 1.
constexpr int kNcclThatSharesGpus = 23000;

// As much of a text as the array holds, with a zero at its end.
template <size_t N>
void store(std::array<char, N>& room, const std::string& text) {
  room = {};
  std::memcpy(room.data(), text.data(), std::min(text.size(), N - 1));
}

// What a rank tells the others before they connect.
struct GpuPeerInfo {
  std::array<char, 768> failure;  // why the rank cannot take part; empty if it can
  std::array<char, 64> host_id;   // NCCL_HOSTID
  std::array<char, 320> machine;
  std::array<char, 32> bus;         // the GPU's place in it
  CudaUuid uuid;                    // the GPU's, or that of its instance
  int32_t version;                  // NCCL's
  int32_t may_share_gpu;            // by NCCL's environment variables
  int32_t is_new_here;              // it has not been set up, or for another GPU
  int32_t lacks_world, lacks_host;  // it has not these communicators

  bool is_on_gpu_of(const GpuPeerInfo& other) const {
    const bool is_same = std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
    return is_same || (machine == other.machine && bus == other.bus);
  }
};

// What NCCL tells machines apart by: one that plays several hosts is one.
std::string machine_name();

// Throws an Error, the same on all ranks, if any of them cannot take part or, `with_nccl`, if they
// have different versions of it or share a GPU that NCCL refuses to share. Returns what is worth a
// note to the user, such as two ranks that share a GPU; empty for nothing.
std::string require_compatible(const std::vector<GpuPeerInfo>& all, const Topology& topology,
                               bool with_nccl);

}  // namespace easyddl
