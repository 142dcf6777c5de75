// The loops of the arithmetic, compiled for several instruction sets.
#pragma once

#include <cstddef>
#include <vector>

#include "arrays/dtype.h"

namespace easyddl {

// The functions of arithmetic.h for one instruction set. All sets of kernels compute the same bits:
// they do the same operations in the same order, each rounded as IEEE 754 demands.
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

// Returns the kernels that this processor can run, the slowest first.
std::vector<const Kernels*> usable_kernels();

// Returns the kernels in use: the fastest, unless a test has set others.
const Kernels& kernels();
void use_kernels(const Kernels& chosen);

}  // namespace easyddl
