// The job: all ranks, and what they share.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "algorithms/gpu_algorithm.h"
#include "algorithms/inter_host_algorithm.h"
#include "reducer/step_sum_thread.h"
#include "runtime/exit_protocol.h"
#include "runtime/liveness_monitor.h"
#include "runtime/stall_inspector.h"
#include "runtime/topology.h"

namespace easyddl {

// How data goes between hosts, as the user wishes. Rank 0's wishes count on all.
struct Wires {
  std::string racks;            // as Layout takes them
  std::string route;            // the name of a Route, or none
  std::string gpu = {};         // the name of a GpuWay, or none
  std::string cuda_aware = {};  // whether MPI takes memory of GPUs: 1, 0, or none
};

class GpuLevel;

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  World(const std::string& host, Deadlines deadlines, const Wires& wires);
  ~World();

  MPI_Comm comm() const { return comm_.get(); }
  const Layout& layout() const { return layout_; }
  std::optional<Route> route() const { return route_; }
  std::optional<GpuWay> gpu_way() const { return gpu_way_; }
  bool cuda_aware_mpi() const { return cuda_aware_mpi_; }
  Farewell& farewell() { return farewell_; }
  PeerWatch& peers() { return *peers_; }
  StallWatch& stalls() { return stalls_; }
  // Collective: returns once all ranks have come here. To be called before what all make together
  // by MPI's own collectives, which know no deadlines. `what` is for errors.
  void meet(const std::string& what);
  // To be called before the end of the script: waits for what this rank has queued on its GPU.
  void finish();
  // Made at the first call, by all ranks together.
  StepSums& step_sums();
  // What all exchanges share on this rank's GPU. Made at the first call.
  GpuLevel& gpu_level();

 private:
  Comm comm_;
  Layout layout_;
  std::optional<Route> route_;
  std::optional<GpuWay> gpu_way_;
  bool cuda_aware_mpi_;
  Farewell farewell_;
  PeerWatch* peers_;  // never destroyed: its thread sleeps on its memory until the process ends
  StallWatch stalls_;
  std::unique_ptr<StepSums> step_sums_;
  std::mutex mutex_;
  std::unique_ptr<GpuLevel> gpu_level_;
};

}  // namespace easyddl
