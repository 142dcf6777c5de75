// The offset of this rank's clock from the root's.
#pragma once

#include <cstdint>

#include "mpi/mpi.h"

namespace easyddl {

// In nanoseconds of the trace's clock: at time `at` of this clock, the root's clock was `at +
// offset`, with an error of at most `error`.
struct ClockOffset {
  int64_t at, offset, error;
};

// Collective. Uses Cristian's algorithm (F. Cristian, "Probabilistic clock synchronization", 1989):
// asks the root for its time several times, and uses the answer with the shortest round trip. The
// root read its clock in the middle of that round trip, with an error of at most half of it.
ClockOffset measure_clock_offset(MPI_Comm comm, bool cores_are_shared);

}  // namespace easyddl
