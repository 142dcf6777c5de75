// Copies the data of one rank to all ranks.
#pragma once

#include <cstdint>

#include "arrays/segment_list.h"
#include "collectives/allocation.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Writes the root's inputs to the outputs of all other ranks.
void broadcast(Communicator& communicator, const SegmentList& data, int root,
               const Fingerprint& fingerprint);

// Writes the root's bytes to the memory that `allocate` returns, on all ranks. Only the root's `in`
// and `bytes` are used. The other ranks learn the number of bytes by the argument of `allocate`.
void broadcast_unknown(Communicator& communicator, const void* in, int64_t bytes, int root,
                       const Fingerprint& fingerprint, const Allocate& allocate);

}  // namespace easyddl
