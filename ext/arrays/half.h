// IEEE binary16 and bfloat16 as storage types: conversions to and from float only.
#pragma once

#include <cstdint>
#include <cstring>

namespace easyddl {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct Half {
  uint16_t bits;

  // Creates no subnormal float, which TensorFlow's threads would flush to zero: a subnormal m *
  // 2^-24 is computed as the difference of 2^-14 * (1 + m / 1024) and 2^-14.
  explicit operator float() const {
    const uint32_t sign = static_cast<uint32_t>(bits & 0x8000u) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(bits & 0x7fffu);
    const uint32_t shifted = magnitude << 13;
    const uint32_t subnormal = bits_of(float_of(0x38800000u + shifted) - float_of(0x38800000u));
    const uint32_t special = magnitude >= 0x7c00u ? 0x38000000u : 0u;  // infinity and NaN
    const uint32_t normal = shifted + 0x38000000u + special;
    return float_of((magnitude < 0x400u ? subnormal : normal) | sign);
  }

  // Rounds to nearest, ties to even.
  static Half from(float value) {
    const uint32_t sign = bits_of(value) & 0x80000000u;
    const uint32_t magnitude = bits_of(value) ^ sign;
    uint32_t rounded;
    if (magnitude >= 0x47800000u) {  // 65536 and above, infinity, NaN
      rounded = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    } else if (magnitude < 0x38800000u) {  // subnormal: adding 0.5 aligns the bits to be kept
      rounded = bits_of(float_of(magnitude) + float_of(0x3f000000u)) - 0x3f000000u;
    } else {
      const uint32_t odd = (magnitude >> 13) & 1u;
      rounded = (magnitude - 0x38000000u + 0xfffu + odd) >> 13;
    }
    return Half{static_cast<uint16_t>(rounded | (sign >> 16))};
  }
};

struct BFloat16 {
  uint16_t bits;

  explicit operator float() const { return float_of(static_cast<uint32_t>(bits) << 16); }

  // Rounds to nearest, ties to even. A NaN stays a NaN.
  static BFloat16 from(float value) {
    const uint32_t raw = bits_of(value);
    const bool nan = (raw & 0x7fffffffu) > 0x7f800000u;
    const uint32_t rounded = (raw + 0x7fffu + ((raw >> 16) & 1u)) >> 16;
    return BFloat16{static_cast<uint16_t>(nan ? (raw >> 16) | 0x40u : rounded)};
  }
};

}  // namespace easyddl
