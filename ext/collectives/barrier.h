// Waits for all ranks.
#pragma once

#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Returns once all ranks have called it.
void barrier(Communicator& communicator, const Fingerprint& fingerprint);

// The same, but no signal ends the wait, because the other ranks may have passed the barrier
// already. It is called before collectives of MPI, which have no deadlines.
void uninterruptible_barrier(Communicator& communicator, const Fingerprint& fingerprint);

}  // namespace easyddl
