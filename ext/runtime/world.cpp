#include "runtime/world.h"

#include <chrono>
#include <utility>

#include "common/agreement.h"
#include "common/check.h"
#include "common/mpi_requests.h"

namespace easyddl {
namespace {

Comm duplicate_world() {
  int level = MPI_THREAD_SINGLE;
  EASYDDL_MPI(MPI_Query_thread, &level);
  if (level < MPI_THREAD_MULTIPLE) {
    throw Error(
        "MPI was initialised without MPI_THREAD_MULTIPLE, which easyddl needs. Leave "
        "mpi4py.rc.thread_level at \"multiple\", and use an MPI that was built with threads.");
  }
  return Comm::duplicate(MPI_COMM_WORLD);
}

PeerWatch* watch_peers(MPI_Comm comm, const Layout& layout) {
  PeerWatch* peers = nullptr;
  try {
    all_or_none(comm, [&] { peers = new PeerWatch(layout); });
  } catch (const Error&) {
    // The job ends for another reason, which all ranks tell.
    if (peers != nullptr) peers->announce_end_of_all();
    throw;
  }
  return peers;
}

std::string of_rank_zero(MPI_Comm comm, std::string text) {
  uint64_t length = text.size();
  EASYDDL_MPI(MPI_Bcast, &length, 1, MPI_UINT64_T, 0, comm);
  text.resize(length);
  EASYDDL_MPI(MPI_Bcast, text.data(), static_cast<int>(length), MPI_CHAR, 0, comm);
  return text;
}

std::optional<Route> route_or_none(const std::string& name) {
  if (name.empty()) return std::nullopt;
  return route_named(name);
}

bool flag(const std::string& text) {
  if (text.empty() || text == "0" || text == "1") return text == "1";
  throw Error(
      "EASYDDL_CUDA_AWARE_MPI must be 1 or 0: whether MPI is to be given memory of GPUs. Without "
      "it, it is not. Received: '" +
      text + "'");
}

}  // namespace

World::World(const std::string& host, Deadlines deadlines, const Wires& wires)
    : comm_(duplicate_world()),
      layout_(comm_.get(), host, of_rank_zero(comm_.get(), wires.racks)),
      route_(route_or_none(of_rank_zero(comm_.get(), wires.route))),
      gpu_way_(gpu_way_named(of_rank_zero(comm_.get(), wires.gpu))),
      cuda_aware_mpi_(flag(of_rank_zero(comm_.get(), wires.cuda_aware))),
      farewell_(comm_.get()),
      peers_(watch_peers(comm_.get(), layout_)),
      stalls_(comm_.get(), layout_, farewell_, deadlines) {}

void World::meet(const std::string& what) {
  const std::string failure = stalls_.failure_of(Farewell::kMeetings);
  if (!failure.empty()) throw Error(failure);
  const uint64_t number = farewell_.begin(Farewell::kMeetings);
  const auto since = std::chrono::steady_clock::now();
  const auto idle = [&] {
    farewell_.check(Farewell::kMeetings, number, what, layout_);
    stalls_.check(Farewell::kMeetings, number, what, since, false);
  };
  try {
    MPI_Request request;
    EASYDDL_MPI(MPI_Ibarrier, comm_.get(), &request);
    wait_requests(&request, 1, layout_.cores_are_shared, idle);
  } catch (const std::exception& error) {
    farewell_.end(Farewell::kMeetings);
    stalls_.forget(Farewell::kMeetings);
    stalls_.announce_failure(Farewell::kMeetings, error.what());
    throw;
  }
  farewell_.end(Farewell::kMeetings);
  stalls_.forget(Farewell::kMeetings);
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
