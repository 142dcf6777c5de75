// Tags of messages. The communicators of easyddl share one of MPI, so each has tags of its own.
#pragma once

#include <cstddef>

#include "mpi/mpi.h"

namespace easyddl {

// So many tags belong to each number.
constexpr int kTagsOfEach = 16;

// The first tag of the messages of communicator `number`. Throws an Error if MPI has too few: it
// promises 32767, which is enough for 2046 communicators. MPICH has 2^28 or so, Open MPI 2^31.
int first_tag(MPI_Comm comm, size_t number);

}  // namespace easyddl
