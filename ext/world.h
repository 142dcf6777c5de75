// The job: all ranks, and what they share.
#pragma once

#include <memory>
#include <string>

#include "farewell.h"
#include "layout.h"
#include "peer_watch.h"
#include "stall_watch.h"

namespace easyddl {

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  World(const std::string& host, Deadlines deadlines);

  MPI_Comm comm() const { return comm_.get(); }
  const Layout& layout() const { return layout_; }
  Farewell& farewell() { return farewell_; }
  PeerWatch& peers() { return peers_; }
  StallWatch& stalls() { return stalls_; }

 private:
  Comm comm_;
  Layout layout_;
  Farewell farewell_;
  PeerWatch peers_;
  StallWatch stalls_;
};

}  // namespace easyddl
