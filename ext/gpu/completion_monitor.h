// The work that is queued on a GPU and not done yet.
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

// A thread that watches the steps of all reducers. Whoever queues a step on the GPU does not wait
// for it: the thread calls back when the step is done, and ends the job if the step fails or takes
// too long.
class GpuCompletionMonitor {
 public:
  // `check` throws if NCCL has met an error.
  GpuCompletionMonitor(World& world, std::function<void()> check);
  // Waits until nothing is queued.
  ~GpuCompletionMonitor();
  GpuCompletionMonitor(const GpuCompletionMonitor&) = delete;
  GpuCompletionMonitor& operator=(const GpuCompletionMonitor&) = delete;

  // A step begins to be queued on this rank. To be called by all ranks in their common order.
  void begin_step();

  struct Work {
    int64_t owner;                // a reducer
    std::string what;             // for errors
    std::function<void()> after;  // called when it is done, on the monitor's thread
  };

  // Records an event on `stream`, the engine's own. `after` is called when the GPU has reached the
  // event, and the framework's stream, if there is one, waits for the event. If too many events are
  // in progress, this waits for the first. The GPU's context must be current.
  void mark(CudaStream stream, std::optional<CudaStream> framework, Work work);

  // Returns once no step of `owner` is in progress; without an owner, no step at all.
  void drain(std::optional<int64_t> owner = std::nullopt);

  // Destroys the events, which belong to a context. No step may be in progress.
  void forget_gpu();

 private:
  struct Mark {
    size_t slot;
    CudaContext context;
    uint64_t number;  // the step's
    Work work;
  };

  void run();
  void wait_for(const Mark& mark);
  bool has_any_of(const std::optional<int64_t>& owner) const;

  static constexpr size_t kMost = 64;  // marks at a time

  World& world_;
  const std::function<void()> check_;
  std::mutex mutex_;
  std::condition_variable came_, went_;
  std::vector<GpuEvent> events_;  // by slot
  std::vector<size_t> free_;
  std::deque<Mark> marks_;  // in the order of the stream
  uint64_t number_ = 0;     // of the step that was begun last
  bool is_ending_ = false;
  std::thread thread_;
};

// The framework does not ask how a step went before it uses the results, and other ranks' GPUs wait
// for this one's: where a step has failed half-way, no rank can go on.
[[noreturn]] void end_job_for_gpu(const World& world, const std::string& failure);

}  // namespace easyddl
