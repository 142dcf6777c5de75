#include "arrays/arithmetic.h"

#include <algorithm>
#include <cstdint>

#include "arrays/half.h"
#include "arrays/kernels.h"
#include "common/check.h"
#include "common/subnormal_mode.h"

namespace easyddl {

void accumulate(void* accumulator, const void* const* sources, size_t num_sources, size_t count,
                DType dtype, Op op) {
  const SubnormalMode mode(SubnormalMode::keep);
  kernels().accumulate(accumulator, sources, num_sources, count, dtype, op);
}

void finish(void* result, const void* accumulator, size_t count, DType dtype, Op op, int divisor) {
  const SubnormalMode mode(SubnormalMode::keep);
  kernels().finish(result, accumulator, count, dtype, op, divisor);
}

void accumulate_and_finish(void* result, const void* const* sources, size_t num_sources,
                           size_t count, DType dtype, Op op, int divisor) {
  const SubnormalMode mode(SubnormalMode::keep);
  kernels().accumulate_and_finish(result, sources, num_sources, count, dtype, op, divisor);
}

void scale(void* result, const void* source, size_t count, DType dtype, double factor) {
  const DType wide = accumulator_of(dtype);
  if (wide != DType::float32 && wide != DType::float64) {
    throw Error("Only floating-point gradients can be weighted.");
  }
  const SubnormalMode mode(SubnormalMode::keep);
  kernels().scale(result, source, count, dtype, factor);
}

int largest_exponent(const float* values, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000u, kOnes = 127;
  uint32_t largest = 0;
  for (size_t i = 0; i < count; ++i) {
    const uint32_t exponent = bits_of(values[i]) & kExponent;
    largest = std::max(largest, exponent == kExponent ? 0 : exponent);
  }
  return static_cast<int>(largest >> 23) - static_cast<int>(kOnes);
}

int exponent_for_float16(int largest, int doublings) {
  constexpr int kLimit = 14, kMost = 127;  // 2^127 is the largest power in float32
  return std::min(kMost, kLimit - doublings - largest);
}

}  // namespace easyddl
