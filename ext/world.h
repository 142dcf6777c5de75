// The job: all ranks, and what they share.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "farewell.h"
#include "gpu_way.h"
#include "layout.h"
#include "peer_watch.h"
#include "route.h"
#include "stall_watch.h"

namespace easyddl {

// How data goes between hosts, as the user wishes. Rank 0's wishes count on all.
struct Wires {
  std::string racks;            // as Layout takes them
  std::string route;            // the name of a Route, or none
  std::string gpu = {};         // the name of a GpuWay, or none
  std::string cuda_aware = {};  // whether MPI takes memory of GPUs: 0, 1, or none
};

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  World(const std::string& host, Deadlines deadlines, const Wires& wires);

  MPI_Comm comm() const { return comm_.get(); }
  const Layout& layout() const { return layout_; }
  std::optional<Route> route() const { return route_; }
  std::optional<GpuWay> gpu_way() const { return gpu_way_; }
  std::optional<bool> cuda_aware_mpi() const { return cuda_aware_mpi_; }
  Farewell& farewell() { return farewell_; }
  PeerWatch& peers() { return peers_; }
  StallWatch& stalls() { return stalls_; }

 private:
  Comm comm_;
  Layout layout_;
  std::optional<Route> route_;
  std::optional<GpuWay> gpu_way_;
  std::optional<bool> cuda_aware_mpi_;
  Farewell farewell_;
  PeerWatch peers_;
  StallWatch stalls_;
};

}  // namespace easyddl
