// The job's timeline: a trace of each rank, on clocks that can be compared.
#pragma once

#include "mpi/mpi.h"

namespace easyddl {

// Collective. From now on this process's trace goes to `file`, which is open for writing.
void start_timeline(MPI_Comm world, bool cores_are_shared, int file);

// Collective if the timeline has been started; called when all ranks have come to their ends.
void end_timeline(MPI_Comm world, bool cores_are_shared);

}  // namespace easyddl
