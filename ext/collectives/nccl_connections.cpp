#include "collectives/nccl_connections.h"

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "collectives/all_gather.h"
#include "collectives/gpu_peer_info.h"
#include "common/check.h"
#include "common/text.h"

namespace easyddl {
namespace {

// The ids of the NCCL communicators that a rank creates, or why it cannot create them.
struct NcclIds {
  std::array<char, 768> failure;
  NcclId world, host;
};

// Called only if a communicator is missing, because each id starts an NCCL thread that never ends.
std::vector<NcclIds> make_ids(Communicator& communicator, const NcclNeeds& needs) {
  const Topology& topology = communicator.topology();
  NcclIds mine{};
  try {
    if (needs.world && topology.rank == 0) mine.world = NcclLevel::new_id();
    if (needs.host && topology.local_rank == 0) mine.host = NcclLevel::new_id();
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  std::vector<NcclIds> all =
      all_gather(communicator, mine, Fingerprint("the creation of NCCL communicators"));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    throw Error(topology.capitalized_name_of(rank) +
                " cannot reduce gradients on its GPU: " + failure);
  }
  return all;
}

}  // namespace

void NcclConnections::connect(Communicator& communicator, const NcclNeeds& needs) {
  if (!needs.any()) return;
  const std::vector<NcclIds> ids = make_ids(communicator, needs);
  const auto& hosts = topology_.node_of;
  const auto first_of_host = static_cast<size_t>(
      std::find(hosts.begin(), hosts.end(), topology_.node_rank) - hosts.begin());
  const auto make = [&](std::unique_ptr<NcclLevel>& level, const NcclId& id, int size, int rank,
                        const Idle& idle) {
    auto made = std::make_unique<NcclLevel>(id, size, rank, idle);
    const std::lock_guard<std::mutex> lock(mutex_);
    level = std::move(made);
  };
  const Fingerprint fingerprint("the connection of GPUs by NCCL");
  CollectiveCall call{"connect GPUs", 0, fingerprint};
  call.is_external = true;
  communicator.run(call, [&](CollectiveContext& context) {
    const Idle& idle = context.idle();
    if (needs.world) make(world_, ids[0].world, topology_.size, topology_.rank, idle);
    if (needs.host && topology_.local_size > 1) {
      make(host_, ids[first_of_host].host, topology_.local_size, topology_.local_rank, idle);
    }
  });
  is_host_connected_ = is_host_connected_ || needs.host;
}

void NcclConnections::disconnect() {
  const std::lock_guard<std::mutex> lock(mutex_);
  world_.reset();
  host_.reset();
  is_host_connected_ = false;
}

void NcclConnections::check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (world_ != nullptr) world_->check();
  if (host_ != nullptr) host_->check();
}

}  // namespace easyddl
