// The arithmetic of a reduction, for every dtype and operator. It computes with subnormal floats in
// any thread: see SubnormalMode.
#pragma once

#include <cstddef>

#include "arrays/dtype.h"

namespace easyddl {

// accumulator[i] = sources[0][i] op sources[1][i] op ..., always in this order, so that the
// bits of a result depend on the topology alone. `sources` hold `dtype`;
// `accumulator` holds accumulator_of(dtype). For the mean this is the sum: see `finish`.
void accumulate(void* accumulator, const void* const* sources, size_t num_sources, size_t count,
                DType dtype, Op op);

// Rounds `accumulator` to `dtype`; for the mean divides by `divisor` first.
void finish(void* result, const void* accumulator, size_t count, DType dtype, Op op, int divisor);

// Both in one pass over the memory.
void accumulate_and_finish(void* result, const void* const* sources, size_t num_sources,
                           size_t count, DType dtype, Op op, int divisor);

// result[i] = source[i] * factor, rounded once; they may be the same memory. For floating-point
// dtypes.
void scale(void* result, const void* source, size_t count, DType dtype, double factor);

}  // namespace easyddl
