// Tests of MPI requests, and waits for them.
#pragma once

#include "common/wait.h"
#include "mpi/mpi.h"

namespace easyddl {

// Returns whether all of these requests have ended. Throws an Error with the cause if one has
// failed.
bool have_ended(MPI_Request* requests, int count);

// Waits until all of these requests have ended. If `idle` throws, they may still be active, and
// their memory must live until they end.
void wait_requests(MPI_Request* requests, int count, bool cores_are_shared, const Idle& idle);

}  // namespace easyddl
