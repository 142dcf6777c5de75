// The all-gather of Bruck et al. (1997), for small blocks: as few rounds as there can be.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/schedule.h"
#include "mpi/mpi.h"

namespace easyddl {

// Adds steps that gather a block of `bytes` of each member of a communicator. In round k a member
// sends the first 2^k blocks that it holds to the one 2^k places before it: after ceil(log2(n))
// rounds all hold all n.
void add_bruck_all_gather(Schedule& schedule, MPI_Comm comm, int rank, int size, const void* mine,
                          size_t bytes);

// The blocks, by rank, once the schedule is no longer in progress.
void copy_gathered(const Schedule& schedule, int rank, int size, void* all, size_t bytes);

}  // namespace easyddl
