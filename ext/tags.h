// Tags of messages: communicators of easyddl's share MPI's, and are told apart by their tags.
#pragma once

#include <mpi.h>

#include <cstddef>

namespace easyddl {

// So many tags belong to each number.
constexpr int kTagsOfEach = 16;

// The first tag of the messages of communicator `number`. MPI promises 32767 tags only: where it
// has no more, they are used again after some 2000 communicators, the oldest of which are long
// gone.
int first_tag(MPI_Comm comm, size_t number);

}  // namespace easyddl
