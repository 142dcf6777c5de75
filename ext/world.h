// The job: all ranks, and what they share.
#pragma once

#include <memory>
#include <string>

#include "farewell.h"
#include "layout.h"
#include "peer_watch.h"

namespace easyddl {

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  explicit World(const std::string& host);

  MPI_Comm comm() const { return comm_.get(); }
  const Layout& layout() const { return layout_; }
  Farewell& farewell() { return farewell_; }
  PeerWatch& peers() { return peers_; }

 private:
  Comm comm_;
  Layout layout_;
  Farewell farewell_;
  PeerWatch peers_;
};

}  // namespace easyddl
