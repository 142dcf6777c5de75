// Files of MPI's in shared memory, which outlive a job that does not end in order.
#pragma once

#include "mpi/mpi.h"

namespace easyddl {

// MPICH keeps the memory that the ranks of a machine share in a file in /dev/shm, of megabytes,
// until MPI_Finalize. A container's /dev/shm has 64 MB: after some aborted jobs none could start.
// Deletes the file once all have mapped it, which keeps the memory. Collective over `machine`, the
// ranks of this machine. Open MPI maps its files later on, and deletes them by its daemon.
void delete_shared_files(MPI_Comm machine);

}  // namespace easyddl
