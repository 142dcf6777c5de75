#include "profiling/timeline.h"

#include "profiling/clock_offset.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Writes the clock's offset. Called at the start and at the end; in between, the drift of the
// clocks is taken to be linear.
void add_clock(MPI_Comm world, bool cores_are_shared) {
  const auto [at, offset, error] = measure_clock_offset(world, cores_are_shared);
  Trace::on()->add_clock(at, offset, error);
}

}  // namespace

void start_timeline(MPI_Comm world, bool cores_are_shared, int file) {
  Trace::start(file);
  add_clock(world, cores_are_shared);
  Trace::on()->flush();
}

void end_timeline(MPI_Comm world, bool cores_are_shared) {
  if (Trace::on() == nullptr) return;
  add_clock(world, cores_are_shared);
  Trace::on()->end();
}

}  // namespace easyddl
