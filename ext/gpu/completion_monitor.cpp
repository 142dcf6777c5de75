#include "gpu/completion_monitor.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "common/check.h"
#include "common/console.h"
#include "common/thread.h"
#include "profiling/trace.h"
#include "runtime/exit_protocol.h"
#include "runtime/job_abort.h"
#include "runtime/world.h"

namespace easyddl {

GpuCompletionMonitor::GpuCompletionMonitor(World& world, std::function<void()> check)
    : world_(world), check_(std::move(check)) {
  events_.reserve(kMost);
  thread_ = start_thread("easyddl gpu", "that monitors the GPU", [this] {
    if (Trace* trace = Trace::on()) trace->name_thread("GPU");
    run();
  });
}

GpuCompletionMonitor::~GpuCompletionMonitor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    added_.notify_one();
  }
  thread_.join();
}

void GpuCompletionMonitor::begin_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  number_ = world_.exit_protocol().begin(ExitProtocol::kGpus);
  // Ended at once, because it makes no MPI calls for which the exit of the process must wait.
  world_.exit_protocol().end(ExitProtocol::kGpus);
}

void GpuCompletionMonitor::mark(CudaStream stream, std::optional<CudaStream> framework, Work work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (free_.empty() && events_.size() < kMost) {
    free_.push_back(events_.size());
    events_.emplace_back();
  }
  removed_.wait(lock, [this] { return !free_.empty(); });
  const size_t slot = free_.back();
  events_[slot].record(stream);
  if (framework) events_[slot].make_stream_wait(*framework);
  free_.pop_back();
  CudaContext context = nullptr;
  EASYDDL_CUDA(CtxGetCurrent, &context);
  marks_.push_back({slot, context, number_, std::move(work)});
  added_.notify_one();
}

bool GpuCompletionMonitor::has_any_of(const std::optional<int64_t>& owner) const {
  return std::any_of(marks_.begin(), marks_.end(),
                     [&](const Mark& mark) { return !owner || mark.work.owner == *owner; });
}

void GpuCompletionMonitor::drain(std::optional<int64_t> owner) {
  std::unique_lock<std::mutex> lock(mutex_);
  removed_.wait(lock, [&] { return !has_any_of(owner); });
}

void GpuCompletionMonitor::destroy_events() {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.clear();
  free_.clear();
}

void GpuCompletionMonitor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return is_ending_ || !marks_.empty(); });
    if (marks_.empty()) return;
    const Mark& first = marks_.front();  // a deque's element does not move while others are added
    lock.unlock();
    try {
      wait_for(first);
    } catch (const std::exception& error) {
      end_job_for_gpu(world_, error.what());
    }
    first.work.after();
    lock.lock();
    free_.push_back(first.slot);
    marks_.pop_front();
    removed_.notify_all();
  }
}

void GpuCompletionMonitor::wait_for(const Mark& mark) {
  const RelaxedCapture relaxed;
  EASYDDL_CUDA(CtxSetCurrent, mark.context);
  const Span span("wait for the GPU");
  const auto since = std::chrono::steady_clock::now();
  bool has_asked = false;
  const auto idle = [&] {
    check_();
    const Topology& topology = world_.topology();
    world_.exit_protocol().check(ExitProtocol::kGpus, mark.number, mark.work.what, topology);
    world_.stall_inspector().check(ExitProtocol::kGpus, mark.number, mark.work.what, since, true);
    has_asked = true;
  };
  poll([&] { return events_[mark.slot].is_reached(); }, true, idle);
  if (!has_asked) return;
  world_.exit_protocol().end_wait(ExitProtocol::kGpus);
  world_.stall_inspector().end_wait(ExitProtocol::kGpus);
}

void end_job_for_gpu(const World& world, const std::string& failure) {
  const Topology& topology = world.topology();
  write_line("easyddl: " + topology.name_of(topology.rank) +
             " failed to reduce gradients on GPUs: " + failure);
  end_job(1);
}

}  // namespace easyddl
