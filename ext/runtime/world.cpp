#include "runtime/world.h"

#include <chrono>
#include <utility>

#include "common/check.h"
#include "mpi/agreement.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"

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
    // The job ends for another reason, which all ranks tell.
    if (liveness != nullptr) liveness->announce_end_of_all();
    throw;
  }
  return liveness;
}

std::string of_rank_zero(MPI_Comm comm, std::string text) {
  uint64_t length = text.size();
  EASYDDL_MPI(MPI_Bcast, &length, 1, MPI_UINT64_T, 0, comm);
  text.resize(length);
  EASYDDL_MPI(MPI_Bcast, text.data(), static_cast<int>(length), MPI_CHAR, 0, comm);
  return text;
}

std::optional<InterHostAlgorithm> inter_host_algorithm_or_none(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return parse_inter_host_algorithm(name);
}

bool flag(const std::string& text) {
  if (text.empty() || text == "0" || text == "1") return text == "1";
  throw Error(
      "EASYDDL_CUDA_AWARE_MPI must be 1 or 0: whether MPI is to be given memory of GPUs. Without "
      "it, it is not. Received: '" +
      text + "'");
}

}  // namespace

World::World(const std::string& host, Deadlines deadlines, const NetworkOptions& options)
    : comm_(duplicate_world()),
      topology_(comm_.get(), host, of_rank_zero(comm_.get(), options.racks)),
      inter_host_algorithm_(
          inter_host_algorithm_or_none(of_rank_zero(comm_.get(), options.inter_host_algorithm))),
      gpu_algorithm_(parse_gpu_algorithm(of_rank_zero(comm_.get(), options.gpu))),
      cuda_aware_mpi_(flag(of_rank_zero(comm_.get(), options.cuda_aware))),
      exit_protocol_(comm_.get()),
      liveness_(make_liveness_monitor(comm_.get(), topology_)),
      stall_inspector_(comm_.get(), topology_, exit_protocol_, deadlines) {}

void World::meet(const std::string& what) {
  const std::string failure = stall_inspector_.failure_of(ExitProtocol::kMeetings);
  if (!failure.empty()) throw Error(failure);
  const uint64_t number = exit_protocol_.begin(ExitProtocol::kMeetings);
  const auto since = std::chrono::steady_clock::now();
  const auto idle = [&] {
    exit_protocol_.check(ExitProtocol::kMeetings, number, what, topology_);
    stall_inspector_.check(ExitProtocol::kMeetings, number, what, since, false);
  };
  try {
    MPI_Request request;
    EASYDDL_MPI(MPI_Ibarrier, comm_.get(), &request);
    wait_requests(&request, 1, topology_.cores_are_shared, idle);
  } catch (const std::exception& error) {
    exit_protocol_.end(ExitProtocol::kMeetings);
    stall_inspector_.forget(ExitProtocol::kMeetings);
    stall_inspector_.announce_failure(ExitProtocol::kMeetings, error.what());
    throw;
  }
  exit_protocol_.end(ExitProtocol::kMeetings);
  stall_inspector_.forget(ExitProtocol::kMeetings);
}

World::SharedObject& World::shared_object(std::type_index type) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return shared_objects_[type];  // a map moves none of its elements
}

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
