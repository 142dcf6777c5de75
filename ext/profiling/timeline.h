// The timeline of a job: a trace of each rank, with the offsets of their clocks.
#pragma once

#include "mpi/mpi.h"

namespace easyddl {

// Collective. Starts the trace of this process in `file`, a descriptor that is open for writing.
void start_timeline(MPI_Comm world, bool cores_are_shared, int file);

// Ends the trace. Collective if the timeline has been started. Called when all ranks have ended.
void end_timeline(MPI_Comm world, bool cores_are_shared);

}  // namespace easyddl
