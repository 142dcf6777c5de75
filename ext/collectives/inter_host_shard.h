// Sums a shard of the caller's over all hosts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>

#include "arrays/dtype.h"
#include "collectives/collective_context.h"

namespace easyddl {

// A leader's shard. Its chunks arrive in host memory one after the other, and are copied from it
// when they are reduced. `on_gpu` is the shard's address on the GPU if MPI may read GPU memory,
// else null. If it is set, only `MpiLevel::part_of` each chunk is copied through host memory.
struct InterHostShard {
  uint8_t* data;
  uint8_t* on_gpu;
  size_t bytes, chunk_bytes;
  DType dtype;
  std::optional<DType> wire;                      // in which float32 is sent to other hosts
  bool is_scaled;                                 // whether factors apply; the same on all leaders
  double factor;                                  // by which the shard must still be multiplied
  std::function<bool(size_t chunk)> has_arrived;  // called until it returns true, once
  std::function<void(size_t chunk)> on_reduced;   // called in the order of the chunks
  std::function<void(const std::function<bool()>&)> wait;  // waits until its argument returns true
};

// Called by all leaders, in a collective with `is_external`.
void reduce_across_hosts(CollectiveContext& context, const InterHostShard& shard);

}  // namespace easyddl
