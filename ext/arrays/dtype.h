// The element types and operators of collectives.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace easyddl {

enum class DType { float16, bfloat16, float32, float64, int8, int16, int32, int64, uint8, boolean };
enum class Op { sum, mean, min, max, prod };

DType parse_dtype(const std::string& name);
// Returns the type in which float32 is sent to other hosts, if that is another one.
std::optional<DType> parse_wire_dtype(const std::string& name);
Op parse_op(const std::string& name);
size_t size_of(DType dtype);

// Returns the type of partial results: float32 for the 16-bit floats, which would otherwise lose
// low bits at every rank, and the type itself for all others.
DType accumulator_of(DType dtype);

}  // namespace easyddl
