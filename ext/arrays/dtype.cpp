#include "arrays/dtype.h"

#include <array>
#include <utility>

#include "common/check.h"

namespace easyddl {
namespace {

struct Described {
  const char* name;
  size_t size;
};

// In the order of DType.
constexpr std::array<Described, 10> kDTypes{{{"float16", 2},
                                             {"bfloat16", 2},
                                             {"float32", 4},
                                             {"float64", 8},
                                             {"int8", 1},
                                             {"int16", 2},
                                             {"int32", 4},
                                             {"int64", 8},
                                             {"uint8", 1},
                                             {"bool", 1}}};

// In the order of Op.
constexpr std::array<const char*, 5> kOps{{"sum", "mean", "min", "max", "prod"}};

}  // namespace

DType parse_dtype(const std::string& name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (name == kDTypes[i].name) return static_cast<DType>(i);
  }
  throw Error("Collectives do not support the dtype " + name + ".");
}

std::optional<DType> parse_wire_dtype(const std::string& name) {
  if (name == "float32") return std::nullopt;
  if (name == "bfloat16") return DType::bfloat16;
  if (name == "float16") return DType::float16;
  throw Error("float32 cannot be sent as " + name + ".");
}

Op parse_op(const std::string& name) {
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (name == kOps[i]) return static_cast<Op>(i);
  }
  throw Error("Collectives do not support the operator " + name + ".");
}

size_t size_of(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].size; }

DType accumulator_of(DType dtype) {
  return dtype == DType::float16 || dtype == DType::bfloat16 ? DType::float32 : dtype;
}

}  // namespace easyddl
