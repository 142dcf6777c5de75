#include "profiling/timeline.h"

#include "profiling/clock_offset.h"
#include "profiling/trace.h"
#include "runtime/world.h"

namespace easyddl {
namespace {

// At the start and at the end: between the two, clocks of different hosts drift apart evenly.
void add_clock(World& world) {
  const auto [at, offset, error] =
      measure_clock_offset(world.comm(), world.layout().cores_are_shared);
  Trace::on()->add_clock(at, offset, error);
}

}  // namespace

void start_timeline(World& world, int file) {
  Trace::start(file);
  add_clock(world);
  Trace::on()->flush();
}

void end_timeline(World& world) {
  if (Trace::on() == nullptr) return;
  add_clock(world);
  Trace::on()->end();
}

}  // namespace easyddl
