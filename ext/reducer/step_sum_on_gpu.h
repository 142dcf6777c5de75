// The part of a sum inside of a step for an array that lies on a GPU.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "arrays/segment_list.h"
#include "gpu/memory.h"

namespace easyddl {

class StepSum;

// Such arrays are short. They go by way of the host's memory, and the thread that hands one in
// waits for the sum: so no stream ever waits for another rank, and it does not matter in which
// order the ranks come to their sums, as it would with a communicator of NCCL's.
class StepSumOnGpu {
 public:
  // Returns when the copy of the sum to the GPU is queued on the stream; and why there is none,
  // empty if there is.
  std::string submit(StepSum& sum, size_t first, const std::vector<Segment>& arrays, double weight,
                     void* stream);

  bool is_used() const { return is_used_; }

  // Gives back the memory. Nothing is handed in any more.
  void close();

 private:
  std::atomic<bool> is_used_{false};
  PinnedBuffer pinned_;
  std::optional<GpuEvent> copied_;  // after the last copy from the pinned memory
};

}  // namespace easyddl
