// How far this rank's clock is from the root's.
#pragma once

#include <cstdint>

#include "mpi/mpi.h"

namespace easyddl {

// In nanoseconds of the clock of the trace: at the time `at`, this clock plus `offset` was the
// root's, give or take `error`.
struct ClockOffset {
  int64_t at, offset, error;
};

// Collective. Cristian's algorithm (F. Cristian, "Probabilistic clock synchronization", 1989):
// asks the root for its time some times over, and believes the answer that came back soonest,
// which was read in the middle of that round trip, give or take half of it.
ClockOffset measure_clock_offset(MPI_Comm comm, bool cores_are_shared);

}  // namespace easyddl
