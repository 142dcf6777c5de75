// Exchanges arrays of different lengths between all ranks, within a collective.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/collective_context.h"

namespace easyddl {

// Writes the arrays of all ranks to `out`, one after the other. `bytes` holds the length of each
// rank's array.
//
// The ranks form a ring, in which the ranks of a host are neighbours. Each rank forwards the arrays
// that it has received, so that every array leaves a host once.
void gather_arrays(CollectiveContext& context, const void* in, void* out,
                   const std::vector<int64_t>& bytes);

// Sends sends[r] bytes to each rank r, and receives receives[r] bytes from it. `in` and `out` hold
// the arrays one after the other.
//
// Each array is sent directly to its rank. In each round a rank sends to a different rank.
void exchange_arrays(CollectiveContext& context, const void* in, void* out,
                     const std::vector<int64_t>& sends, const std::vector<int64_t>& receives);

}  // namespace easyddl
