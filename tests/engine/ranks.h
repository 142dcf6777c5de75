// The ranks of a test job, and what they share.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "collectives/communicator.h"
#include "reducer/reducer_group.h"
#include "runtime/world.h"

namespace ranks {

easyddl::World& world();
// A communicator of all ranks. The first call creates it, so all ranks must make it together.
easyddl::Communicator& communicator();
// The reducer group of that communicator.
easyddl::ReducerGroup& reducer_group();
int rank();
int size();

// Gathers the texts of all ranks, in the order of the ranks, by MPI's own collectives.
std::vector<std::string> gather(const std::string& text);

// Calls MPI's own barrier.
void meet();

}  // namespace ranks
