// The arithmetic of reductions, for every dtype and operator. It keeps subnormal floats on any
// thread: see SubnormalMode.
#pragma once

#include <cstddef>

#include "arrays/dtype.h"

namespace easyddl {

// accumulator[i] = sources[0][i] op sources[1][i] op ..., always in this order, so that the bits of
// a result depend only on the topology. `sources` have `dtype`; `accumulator` has
// accumulator_of(dtype). For the mean this is the sum: see `finish`.
void accumulate(void* accumulator, const void* const* sources, size_t num_sources, size_t count,
                DType dtype, Op op);

// Rounds `accumulator` to `dtype`; for the mean divides by `divisor` first.
void finish(void* result, const void* accumulator, size_t count, DType dtype, Op op, int divisor);

// Does both in one pass over the memory.
void accumulate_and_finish(void* result, const void* const* sources, size_t num_sources,
                           size_t count, DType dtype, Op op, int divisor);

// result[i] = source[i] * factor, rounded once. Both may be the same memory. Only for
// floating-point dtypes.
void scale(void* result, const void* source, size_t count, DType dtype, double factor);

// Returns the exponent e of the largest finite magnitude, which is at least 2^e and less than
// 2^(e+1). Returns -127 if that is 0 or subnormal.
int largest_exponent(const float* values, size_t count);

// Returns the exponent of the power of two by which values are multiplied before they are rounded
// to float16. The largest exponent of the values is `largest`. Sums of 2^`doublings` values are
// then less than 2^15: the range of float16 ends at 65504.
int exponent_for_float16(int largest, int doublings);

}  // namespace easyddl
