// How ranks part: no rank waits for one that has left.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "layout.h"

namespace easyddl {

// A rank that ends normally tells all others how many collectives it had begun on each
// channel. A rank that waits in a later one then knows that it waits in vain.
class Farewell {
 public:
  static constexpr size_t kChannels = 1024;

  // Collective over `world`.
  explicit Farewell(MPI_Comm world);

  // The number of a new channel. Channels must be made in the same order on all ranks.
  size_t add_channel();

  // Notes that this rank begins a collective on `channel`; returns its number, from 1.
  uint64_t begin(size_t channel);

  // How many collectives this rank has begun on `channel`.
  uint64_t begun(size_t channel);

  // Throws an Error if a rank has left without having begun collective `number` of `channel`.
  // `what` says what this rank waits in.
  void check(size_t channel, uint64_t number, const std::string& what, const Layout& layout);

  // Says goodbye and waits until all have. Returns whether all ranks passed `flag` true.
  bool leave(bool flag);

 private:
  struct Notice {
    uint64_t left;  // 1 once it has arrived
    uint64_t flag;
    uint64_t begun[kChannels];
  };

  bool receive_one();

  Comm comm_;
  std::mutex mutex_;
  size_t channels_ = 0;
  Notice mine_{};
  std::vector<Notice> notices_;  // by rank
};

}  // namespace easyddl
