// Reduces data over all ranks, and gives each rank one part of the result.
#pragma once

#include <cstddef>

#include "arrays/dtype.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Reduces part r of all ranks' `in`, and writes the result to `out` of rank r. A part has `count`
// elements.
void reduce_scatter(Communicator& communicator, const void* in, void* out, size_t count,
                    DType dtype, Op op, const Fingerprint& fingerprint);

}  // namespace easyddl
