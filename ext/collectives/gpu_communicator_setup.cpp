// How the ranks connect their GPUs: they compare what they have, make NCCL's communicators, and
// reduce zeros once, so that no later step allocates memory or makes a connection.
#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "collectives/communicator.h"
#include "collectives/gpu_communicator.h"
#include "common/check.h"
#include "common/console.h"
#include "common/environment.h"

namespace easyddl {
namespace {

int count_gpus() {
  int count = 0;
  EASYDDL_CUDA(DeviceGetCount, &count);
  if (count == 0) throw Error("There is no GPU.");
  return count;
}

}  // namespace

// Of communicators that this rank leads, and why it cannot make them.
struct GpuCommunicator::NcclIds {
  std::array<char, 768> failure;
  NcclId world, host;
};

struct GpuCommunicator::NcclNeeds {
  bool world = false, host = false;  // communicators
  bool nccl() const { return world || host; }
};

GpuCommunicator::NcclNeeds GpuCommunicator::needs_of(const std::vector<GpuLoad>& loads) const {
  NcclNeeds needs;
  for (const GpuLoad& load : loads) {
    const GpuAlgorithm algorithm = algorithm_of(load);
    needs.world = needs.world || (algorithm == GpuAlgorithm::nccl && gpu_topology_.ranks > 1);
    needs.host =
        needs.host || (algorithm == GpuAlgorithm::hierarchical && gpu_topology_.most_on_a_host > 1);
  }
  return needs;
}

int GpuCommunicator::gpu_or_mine(std::optional<int> gpu) const {
  return gpu.value_or(gpu_ >= 0 ? gpu_ : topology_.local_rank % count_gpus());
}

void GpuCommunicator::prepare(Communicator& communicator, const std::vector<GpuLoad>& loads,
                              std::optional<int> gpu) {
  const NcclNeeds needs = needs_of(loads);
  const GpuPeerInfo mine = peer_info(needs, gpu.value_or(-1));
  std::vector<GpuPeerInfo> all(static_cast<size_t>(topology_.size));
  communicator.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                          Fingerprint("how the ranks exchange gradients on GPUs"));
  const std::string note = require_compatible(all, topology_, needs.nccl());
  if (!note.empty() && gpu_ < 0 && topology_.rank == 0) write_line("easyddl: note: " + note);
  // All ranks do so together, since communicators go by GPUs.
  const bool anew = std::any_of(all.begin(), all.end(),
                                [](const GpuPeerInfo& each) { return each.is_new_here != 0; });
  if (anew) set_up(gpu_or_mine(gpu));
  const CurrentContext current(context_of(gpu_));
  // Where a rank has failed half-way, others may have a communicator that it has not.
  const auto lacks = [&](auto member) {
    return anew || std::any_of(all.begin(), all.end(),
                               [&](const GpuPeerInfo& each) { return each.*member != 0; });
  };
  connect(communicator, {needs.world && lacks(&GpuPeerInfo::lacks_world),
                         needs.host && lacks(&GpuPeerInfo::lacks_host)});
  warm_up(communicator, loads);
}

void GpuCommunicator::set_up(int gpu) {
  watch_.drain();
  watch_.forget_gpu();
  if (gpu_ >= 0) {
    const CurrentContext before(context_of(gpu_));
    const std::lock_guard<std::mutex> lock(communicators_mutex_);
    world_.reset();
    host_.reset();
    hosts_are_connected_ = false;
    scratch_.release();
    pinned_.release();
    weight_.release();
    fetched_.clear();
    gpu_ = -1;  // until all is there
  }
  const CurrentContext current(context_of(gpu));
  stream_.emplace();
  back_.emplace();
  entered_.emplace();
  done_.emplace();
  returned_.emplace();
  for (size_t i = 0; i < kAhead; ++i) fetched_.emplace_back();
  weight_.at_least(sizeof(float));
  gpu_ = gpu;
}

GpuPeerInfo GpuCommunicator::peer_info(const NcclNeeds& needs, int gpu) const {
  GpuPeerInfo mine{};
  try {
    const int here = gpu_or_mine(gpu < 0 ? std::nullopt : std::optional<int>(gpu));
    int device = 0;
    EASYDDL_CUDA(DeviceGet, &device, here);
    EASYDDL_CUDA(DeviceGetUuid, &mine.uuid, device);
    EASYDDL_CUDA(DeviceGetPCIBusId, mine.bus.data(), static_cast<int>(mine.bus.size()), device);
    context_of(here);
    mine.is_new_here = here != gpu_ ? 1 : 0;
    mine.lacks_world = world_ == nullptr ? 1 : 0;
    mine.lacks_host = hosts_are_connected_ ? 0 : 1;
    store(mine.machine, machine_name());
    store(mine.host_id, environment_variable("NCCL_HOSTID"));
    if (!needs.nccl()) return mine;
    mine.version = nccl().version;
    mine.may_share_gpu = mine.version >= kNcclThatSharesGpus &&
                                 environment_variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
                             ? 1
                             : 0;
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  return mine;
}

// Only where a communicator is missing: each id starts a thread of NCCL's, which never ends.
std::vector<GpuCommunicator::NcclIds> GpuCommunicator::make_ids(Communicator& communicator,
                                                                const NcclNeeds& missing) const {
  NcclIds mine{};
  try {
    if (missing.world && topology_.rank == 0) mine.world = NcclLevel::new_id();
    if (missing.host && topology_.local_rank == 0) mine.host = NcclLevel::new_id();
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  std::vector<NcclIds> all(static_cast<size_t>(topology_.size));
  communicator.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                          Fingerprint("the communicators of NCCL"));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    throw Error(topology_.capitalized_name_of(rank) +
                " cannot exchange gradients on its GPU: " + failure);
  }
  return all;
}

void GpuCommunicator::connect(Communicator& communicator, const NcclNeeds& missing) {
  if (!missing.nccl()) return;
  const std::vector<NcclIds> ids = make_ids(communicator, missing);
  const auto& hosts = topology_.node_of;
  const auto first_of_host = static_cast<size_t>(
      std::find(hosts.begin(), hosts.end(), topology_.node_rank) - hosts.begin());
  const auto make = [&](std::unique_ptr<NcclLevel>& communicator, const NcclId& id, int size,
                        int rank, const Idle& idle) {
    auto made = std::make_unique<NcclLevel>(id, size, rank, idle);
    const std::lock_guard<std::mutex> lock(communicators_mutex_);
    communicator = std::move(made);
  };
  const Fingerprint fingerprint("the connection of GPUs by NCCL");
  communicator.take_part("connect GPUs", 0, fingerprint, [&](const Idle& idle) {
    if (missing.world) make(world_, ids[0].world, topology_.size, topology_.rank, idle);
    if (missing.host && topology_.local_size > 1) {
      make(host_, ids[first_of_host].host, topology_.local_size, topology_.local_rank, idle);
    }
  });
  hosts_are_connected_ = hosts_are_connected_ || missing.host;
}

void GpuCommunicator::warm_up(Communicator& communicator, const std::vector<GpuLoad>& loads) {
  size_t most = 0, most_pinned = 0;
  for (const GpuLoad& load : loads) {
    const size_t padded =
        shard_bytes(load.total(), load.dtype) * static_cast<size_t>(gpu_topology_.leaders);
    most = std::max(most, padded);
    if (algorithm_of(load) != GpuAlgorithm::nccl) most_pinned = std::max(most_pinned, padded);
  }
  watch_.drain();  // what is in progress uses the memory that there is
  scratch_.at_least(most);
  if (most_pinned > 0) pinned_.at_least(most_pinned);
  const Fingerprint fingerprint("the warm-up of a reducer on GPUs");
  communicator.take_part("rehearse on GPUs", 0, fingerprint, [&](const Idle& idle) {
    for (const GpuLoad& load : loads) {
      if (algorithm_of(load) == GpuAlgorithm::host) continue;
      reduce(communicator, zeros(load.bytes), load.dtype, algorithm_of(load), load.reduction, idle);
    }
    wait(idle);
  });
}

}  // namespace easyddl
