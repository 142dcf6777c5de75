// Message tags. All easyddl communicators share one MPI communicator, so each has its own tags.
#pragma once

#include <cstddef>

#include "mpi/mpi.h"

namespace easyddl {

// The number of tags of each communicator.
constexpr int kTagsOfEach = 16;

// Returns the first tag of the messages of communicator `number`. Throws an Error if MPI has too
// few tags. MPI guarantees 32767, which is enough for 2046 communicators. MPICH has about 2^28,
// Open MPI 2^31.
int first_tag(MPI_Comm comm, size_t number);

}  // namespace easyddl
