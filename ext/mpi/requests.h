// Requests of MPI: whether they have ended, and what has gone wrong with them.
#pragma once

#include "common/wait.h"
#include "mpi/mpi.h"

namespace easyddl {

// Whether all of these requests have ended. Throws an Error with the cause if one has failed.
bool have_ended(MPI_Request* requests, int count);

// Returns once all of these requests have ended. If `idle` throws, they may still be active: their
// memory must live until MPI has let go of it.
void wait_requests(MPI_Request* requests, int count, bool cores_are_shared, const Idle& idle);

}  // namespace easyddl
