// Sends a different part of each rank's data to each other rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/allocation.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Sends sends[r] units to each rank r. The units that this rank receives go to the memory that
// `allocate` returns, in the order of the ranks that have sent them.
void all_to_all(Communicator& communicator, const void* in, const std::vector<int64_t>& sends,
                size_t unit_bytes, const Fingerprint& fingerprint, const Allocate& allocate);

}  // namespace easyddl
