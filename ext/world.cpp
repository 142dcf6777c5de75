#include "world.h"

#include "check.h"

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

std::optional<bool> flag_or_none(const std::string& text) {
  if (text.empty()) return std::nullopt;
  if (text == "0" || text == "1") return text == "1";
  throw Error(
      "EASYDDL_CUDA_AWARE_MPI must be 1 or 0: whether MPI takes memory of GPUs. Without it MPI is "
      "asked. Received: '" +
      text + "'");
}

}  // namespace

World::World(const std::string& host, Deadlines deadlines, const Wires& wires)
    : comm_(duplicate_world()),
      layout_(comm_.get(), host, of_rank_zero(comm_.get(), wires.racks)),
      route_(route_or_none(of_rank_zero(comm_.get(), wires.route))),
      gpu_way_(gpu_way_named(of_rank_zero(comm_.get(), wires.gpu))),
      cuda_aware_mpi_(flag_or_none(of_rank_zero(comm_.get(), wires.cuda_aware))),
      farewell_(comm_.get()),
      peers_(layout_),
      stalls_(comm_.get(), layout_, farewell_, deadlines) {}

}  // namespace easyddl
