// Monitors the work that is queued on a GPU.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "common/wait.h"
#include "gpu/memory.h"

namespace easyddl {

class World;

// A thread that monitors the steps of all reducers, so that threads that queue a step on the GPU
// need not wait for it. It calls a function when a step is done, and ends the job if a step fails
// or takes too long.
class GpuCompletionMonitor {
 public:
  // `check` throws if NCCL reports an error.
  GpuCompletionMonitor(World& world, std::function<void()> check);
  // Waits until no work is queued.
  ~GpuCompletionMonitor();
  GpuCompletionMonitor(const GpuCompletionMonitor&) = delete;
  GpuCompletionMonitor& operator=(const GpuCompletionMonitor&) = delete;

  // Counts a step that this rank begins to queue. Called by all ranks in the same order.
  void begin_step();

  struct Work {
    int64_t owner;                // a reducer
    std::string what;             // for errors
    std::function<void()> after;  // called on the monitor's thread when the work is done
  };

  // Records an event on `stream`, the engine's stream, and makes the framework's stream wait for
  // it, if that is given. `work.after` is called when the GPU has reached the event. If too many
  // events are in progress, this waits for the first. The GPU's context must be current.
  void mark(CudaStream stream, std::optional<CudaStream> framework, Work work);

  // Waits until no step of `owner` is in progress; without an owner, until no step at all is.
  void drain(std::optional<int64_t> owner = std::nullopt);

  // Destroys the events, which are bound to a context. No step may be in progress.
  void destroy_events();

 private:
  struct Mark {
    size_t slot;
    CudaContext context;
    uint64_t number;  // of the step
    Work work;
  };

  void run();
  void wait_for(const Mark& mark);
  bool has_any_of(const std::optional<int64_t>& owner) const;

  static constexpr size_t kMost = 64;  // the most marks at a time

  World& world_;
  const std::function<void()> check_;
  std::mutex mutex_;
  std::condition_variable added_, removed_;
  std::vector<GpuEvent> events_;  // by slot
  std::vector<size_t> free_;
  std::deque<Mark> marks_;  // in the order of the stream
  uint64_t number_ = 0;     // of the step that was begun last
  bool is_ending_ = false;
  std::thread thread_;
};

// Ends the job after a step has failed part-way. No rank can continue then: the framework uses the
// results without checking for errors, and the GPUs of other ranks wait for this rank's GPU.
[[noreturn]] void end_job_for_gpu(const World& world, const std::string& failure);

}  // namespace easyddl
