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

}  // namespace

World::World(const std::string& host, Deadlines deadlines)
    : comm_(duplicate_world()),
      layout_(comm_.get(), host),
      farewell_(comm_.get()),
      peers_(layout_),
      stalls_(comm_.get(), layout_, farewell_, deadlines) {}

}  // namespace easyddl
