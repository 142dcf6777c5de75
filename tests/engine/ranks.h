// The ranks of a job of tests.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/world.h"

namespace ranks {

easyddl::World& world();
int rank();
int size();

// Each rank's text, in their order, by MPI's own means.
std::vector<std::string> gather(const std::string& text);

// MPI's own barrier.
void meet();

}  // namespace ranks
