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
  thread_ = start_thread("easyddl gpu", "that watches the GPU", [this] {
    if (Trace* trace = Trace::on()) trace->name_thread("GPU");
    run();
  });
}

GpuCompletionMonitor::~GpuCompletionMonitor() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_ending_ = true;
    came_.notify_one();
  }
  thread_.join();
}

void GpuCompletionMonitor::begin_step() {
  const std::lock_guard<std::mutex> lock(mutex_);
  number_ = world_.exit_protocol().begin(ExitProtocol::kGpus);
  // It makes no call of MPI's that the end of the process would have to wait for.
  world_.exit_protocol().end(ExitProtocol::kGpus);
}

void GpuCompletionMonitor::mark(CudaStream stream, std::optional<CudaStream> framework, Work work) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (free_.empty() && events_.size() < kMost) {
    free_.push_back(events_.size());
    events_.emplace_back();
  }
  went_.wait(lock, [this] { return !free_.empty(); });
  const size_t slot = free_.back();
  events_[slot].record(stream);
  if (framework) events_[slot].make_stream_wait(*framework);
  free_.pop_back();
  CudaContext context = nullptr;
  EASYDDL_CUDA(CtxGetCurrent, &context);
  marks_.push_back({slot, context, number_, std::move(work)});
  came_.notify_one();
}

bool GpuCompletionMonitor::has_any_of(const std::optional<int64_t>& owner) const {
  return std::any_of(marks_.begin(), marks_.end(),
                     [&](const Mark& mark) { return !owner || mark.work.owner == *owner; });
}

void GpuCompletionMonitor::drain(std::optional<int64_t> owner) {
  std::unique_lock<std::mutex> lock(mutex_);
  went_.wait(lock, [&] { return !has_any_of(owner); });
}

void GpuCompletionMonitor::forget_gpu() {
  const std::lock_guard<std::mutex> lock(mutex_);
  events_.clear();
  free_.clear();
}

void GpuCompletionMonitor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return is_ending_ || !marks_.empty(); });
    if (marks_.empty()) return;
    const Mark& first = marks_.front();  // stays where it is while others are added
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
    went_.notify_all();
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
  poll([&] { return events_[mark.slot].has_come(); }, true, idle);
  if (!has_asked) return;
  world_.exit_protocol().forget(ExitProtocol::kGpus);
  world_.stall_inspector().forget(ExitProtocol::kGpus);
}

void end_job_for_gpu(const World& world, const std::string& failure) {
  const Topology& topology = world.topology();
  write_line("easyddl: " + topology.name_of(topology.rank) +
             " failed in an exchange of gradients on GPUs: " + failure);
  end_job(1);
}

}  // namespace easyddl
