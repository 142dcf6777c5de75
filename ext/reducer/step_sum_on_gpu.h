// Copies the array of a sum within a step from the GPU and back.
#pragma once

#include <atomic>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "arrays/segment_list.h"
#include "gpu/memory.h"
#include "reducer/registry.h"

namespace easyddl {

// These arrays are short. They are copied through host memory, and the thread that submits one
// waits for the sum. So no stream ever waits for another rank, and the ranks may compute their sums
// in any order, which NCCL would not permit.
class StepSumOnGpu {
 public:
  // Returns when the copy of the sum to the GPU is queued on the stream. Returns an error text;
  // empty for success.
  std::string submit(Submittable& sum, size_t first, const std::vector<Segment>& arrays,
                     double weight, void* stream);

  bool is_used() const { return is_used_; }

  // Frees the memory. Nothing may be submitted after this.
  void close();

 private:
  std::atomic<bool> is_used_{false};
  PinnedBuffer pinned_;
  std::optional<GpuEvent> copied_;  // after the last copy from the pinned memory
};

}  // namespace easyddl
