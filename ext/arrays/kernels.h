// The loops of the arithmetic, for each instruction set that they have been compiled for.
#pragma once

#include <cstddef>
#include <vector>

#include "arrays/dtype.h"

namespace easyddl {

// The functions of arithmetic.h. All sets of kernels compute the same bits: each operation on an
// element is rounded as IEEE 754 says, in the same order.
struct Kernels {
  const char* instruction_set;
  void (*accumulate)(void* accumulator, const void* const* sources, size_t num_sources,
                     size_t count, DType dtype, Op op);
  void (*finish)(void* result, const void* accumulator, size_t count, DType dtype, Op op,
                 int divisor);
  void (*accumulate_and_finish)(void* result, const void* const* sources, size_t num_sources,
                                size_t count, DType dtype, Op op, int divisor);
  void (*scale)(void* result, const void* source, size_t count, DType dtype, double factor);
};

// The kernels that this processor can run, the slowest first.
std::vector<const Kernels*> usable_kernels();

// The kernels in use: the fastest, unless a test has chosen others.
const Kernels& kernels();
void use_kernels(const Kernels& chosen);

}  // namespace easyddl
