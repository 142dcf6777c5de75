// The all-gather of Bruck et al. (1997), which needs the fewest rounds. For small blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "algorithms/schedule.h"
#include "mpi/mpi.h"

namespace easyddl {

// Adds steps that gather a block of `bytes` of each member of a communicator. In round k a member
// sends the first 2^k blocks that it holds to the member 2^k positions before it. After
// ceil(log2(n)) rounds each of the n members holds all blocks.
void add_bruck_all_gather(Schedule& schedule, MPI_Comm comm, int rank, int size, const void* mine,
                          size_t bytes);

// Copies the gathered blocks to `all`, in the order of the ranks. Called when the schedule is
// completed.
void copy_gathered(const Schedule& schedule, int rank, int size, void* all, size_t bytes);

}  // namespace easyddl
