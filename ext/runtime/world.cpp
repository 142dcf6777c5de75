#include "runtime/world.h"

#include <utility>

#include "common/check.h"
#include "mpi/agreement.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

MpiComm duplicate_world() {
  auto level = mpi::ThreadLevel::single;
  EASYDDL_MPI(MPI_Query_thread, &level);
  if (level < MPI_THREAD_MULTIPLE) {
    throw Error(
        "MPI was initialised without MPI_THREAD_MULTIPLE, which easyddl needs. Leave "
        "mpi4py.rc.thread_level at \"multiple\", and use an MPI that was built with threads.");
  }
  return MpiComm::duplicate(MPI_COMM_WORLD);
}

LivenessMonitor* make_liveness_monitor(MPI_Comm comm, const Topology& topology) {
  LivenessMonitor* liveness = nullptr;
  try {
    all_or_none(comm, [&] { liveness = new LivenessMonitor(topology); });
  } catch (const Error&) {
    // The job ends for another reason, which all ranks report.
    if (liveness != nullptr) liveness->announce_job_end();
    throw;
  }
  return liveness;
}

bool flag(const std::string& text) {
  if (text.empty() || text == "0" || text == "1") return text == "1";
  throw Error(
      "EASYDDL_CUDA_AWARE_MPI must be 1 or 0. It says whether MPI accepts GPU memory; the default "
      "is 0. Received: '" +
      text + "'");
}

}  // namespace

World::World(const std::string& host, Deadlines deadlines, const NetworkOptions& options)
    : comm_(duplicate_world()),
      // Braces, because they evaluate the broadcasts in the order in which they stand.
      topology_{comm_.get(), host, broadcast_text(comm_.get(), options.racks, 0),
                broadcast_text(comm_.get(), options.host_order, 0)},
      algorithm_rules_(broadcast_text(comm_.get(), options.algorithm_rules, 0),
                       topology_.levels.size()),
      gpu_algorithm_(parse_gpu_algorithm(broadcast_text(comm_.get(), options.gpu, 0))),
      cuda_aware_mpi_(flag(broadcast_text(comm_.get(), options.cuda_aware, 0))),
      exit_protocol_(comm_.get()),
      liveness_(make_liveness_monitor(comm_.get(), topology_)),
      stall_inspector_(comm_.get(), topology_, exit_protocol_, deadlines) {}

void World::add_to_finish(std::function<void()> wait) {
  const std::lock_guard<std::mutex> lock(mutex_);
  to_finish_.push_back(std::move(wait));
}

void World::finish() {
  std::vector<std::function<void()>> waits;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    waits = to_finish_;
  }
  for (const auto& wait : waits) wait();
}

}  // namespace easyddl
