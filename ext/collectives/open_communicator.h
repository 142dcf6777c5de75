// Creates a communicator on all ranks together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "collectives/communicator.h"

namespace easyddl {

// Collective over the world. If any rank fails to create the communicator, all ranks throw.
std::unique_ptr<Communicator> open_communicator(World& world, size_t most_bytes = SIZE_MAX);

// The same for a communicator that breaks when `parent` breaks. `what` describes its use, and is
// the same on all ranks.
std::unique_ptr<Communicator> open_child(Communicator& parent, const std::string& what,
                                         size_t most_bytes = SIZE_MAX);

}  // namespace easyddl
