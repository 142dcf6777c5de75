// Memory for a result whose length is known only during the collective.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/collective_context.h"

namespace easyddl {

// Returns memory for a result. It is called once, when `counts`, the number of units of each rank,
// are known. If it throws an Error or runs out of memory, all ranks throw the same error, and the
// communicator can be used again.
using Allocate = std::function<void*(const std::vector<int64_t>& counts)>;

// Calls `allocate` between the two halves of a collective. The second half has its own fingerprint,
// so that it never matches the first half of another collective. A rank whose allocation fails
// still takes part in the second half, with the failure in its fingerprint. Then all ranks throw
// the same CollectiveError.
void* allocate_together(CollectiveContext& context, const std::vector<int64_t>& counts,
                        const Allocate& allocate);

}  // namespace easyddl
