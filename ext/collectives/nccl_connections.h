// The NCCL communicators of a process.
#pragma once

#include <memory>
#include <mutex>

#include "collectives/communicator.h"
#include "common/wait.h"
#include "levels/nccl_level.h"
#include "runtime/topology.h"

namespace easyddl {

// A selection of NCCL communicators.
struct NcclNeeds {
  bool world = false, host = false;
  bool any() const { return world || host; }
};

// One NCCL communicator over all ranks, and one over the ranks of this host. Each is created when a
// reducer first needs it.
class NcclConnections {
 public:
  explicit NcclConnections(const Topology& topology) : topology_(topology) {}

  // Returns the communicators that this rank lacks. A rank that is alone on its host needs none for
  // the host, but counts as connected once the other hosts are.
  NcclNeeds missing() const { return {world_ == nullptr, !is_host_connected_}; }

  // Collective over the communicator. Creates the NCCL communicators in `needs` anew. The GPU's
  // context must be current. Throws on all ranks if any rank fails.
  void connect(Communicator& communicator, const NcclNeeds& needs);

  // Destroys both communicators.
  void disconnect();

  // Throws if NCCL reports an error. May be called from any thread.
  void check();

  // Null if there is none.
  NcclLevel* world() { return world_.get(); }
  NcclLevel* host() { return host_.get(); }

 private:
  const Topology& topology_;
  std::mutex mutex_;  // guards the pointers against `check`
  std::unique_ptr<NcclLevel> world_, host_;
  bool is_host_connected_ = false;
};

}  // namespace easyddl
