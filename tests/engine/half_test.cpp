#include "arrays/half.h"

#include <cmath>
#include <limits>

#include "common/subnormal_mode.h"
#include "trial.h"

namespace {

using easyddl::BFloat16;
using easyddl::bits_of;
using easyddl::float_of;
using easyddl::Half;
using easyddl::SubnormalMode;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Returns the value of a bit pattern, by the definition of a format with this many exponent and
// mantissa bits.
double meaning(uint32_t bits, int exponent_bits, int fraction_bits) {
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int top = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> fraction_bits) & top;
  const int fraction = static_cast<int>(bits & ((1u << fraction_bits) - 1));
  const double sign = (bits >> (exponent_bits + fraction_bits)) != 0 ? -1.0 : 1.0;
  if (exponent == top) {
    return fraction == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const double significand = exponent == 0 ? fraction : fraction + (1 << fraction_bits);
  const int power = (exponent == 0 ? 1 : exponent) - bias - fraction_bits;
  return sign * std::ldexp(significand, power);
}

template <class T>
void expect_meaning(uint32_t bits, int exponent_bits, int fraction_bits) {
  const float value = static_cast<float>(T{static_cast<uint16_t>(bits)});
  const double expected = meaning(bits, exponent_bits, fraction_bits);
  if (std::isnan(expected)) {
    EXPECT(std::isnan(value));
    EXPECT(std::isnan(static_cast<float>(T::from(value))));
    return;
  }
  EXPECT_EQUAL(static_cast<double>(value), expected);
  EXPECT_EQUAL(std::signbit(value), std::signbit(expected));
  EXPECT_EQUAL(T::from(value).bits, bits);
}

// Between two neighbouring values, a float rounds to the nearer one, and the middle rounds to the
// even one. The value after the largest number is infinity.
template <class T>
void expect_rounding(uint32_t infinity, int exponent_bits, int fraction_bits) {
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = meaning(bits, exponent_bits, fraction_bits);
    const double step = low - meaning(bits - (bits > 0 ? 1 : 0), exponent_bits, fraction_bits);
    const double above =
        bits + 1 < infinity ? meaning(bits + 1, exponent_bits, fraction_bits) : low + step;
    const float middle = static_cast<float>((low + above) / 2);
    for (const uint32_t sign : {0u, 0x8000u}) {
      const float side = sign == 0 ? 1.0f : -1.0f;
      EXPECT_EQUAL(T::from(side * middle).bits, (bits + (bits & 1u)) | sign);
      EXPECT_EQUAL(T::from(side * std::nextafter(middle, 0.0f)).bits, bits | sign);
      EXPECT_EQUAL(T::from(side * std::nextafter(middle, kInfinity)).bits, (bits + 1) | sign);
    }
  }
}

}  // namespace

TEST(every_float16_means_what_its_bits_say) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) expect_meaning<Half>(bits, 5, 10);
}

TEST(every_bfloat16_means_what_its_bits_say) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) expect_meaning<BFloat16>(bits, 8, 7);
}

TEST(floats_are_rounded_to_the_nearest_float16) { expect_rounding<Half>(0x7c00, 5, 10); }

TEST(floats_are_rounded_to_the_nearest_bfloat16) { expect_rounding<BFloat16>(0x7f80, 8, 7); }

TEST(floats_beyond_the_range_become_infinite_or_zero) {
  EXPECT_EQUAL(Half::from(1e9f).bits, 0x7c00);
  EXPECT_EQUAL(Half::from(-kInfinity).bits, 0xfc00);
  EXPECT_EQUAL(Half::from(-1e-30f).bits, 0x8000);
  EXPECT_EQUAL(Half::from(float_of(1)).bits, 0);
  EXPECT_EQUAL(BFloat16::from(float_of(0x7f7fffff)).bits, 0x7f80);
}

// A NaN whose mantissa bits are all lost by the conversion must not become infinity.
TEST(a_nan_stays_one) {
  for (const uint32_t bits : {0x7f800001u, 0xff800001u, 0x7fffffffu, 0xffffffffu}) {
    EXPECT(std::isnan(static_cast<float>(Half::from(float_of(bits)))));
    EXPECT(std::isnan(static_cast<float>(BFloat16::from(float_of(bits)))));
  }
}

#if defined(__SSE__)
struct Conversions {
  uint32_t wide;    // bits of the float that a Half becomes
  uint16_t narrow;  // bits of the Half that this float becomes
};

Conversions converted(Half half, SubnormalMode::Mode mode) {
  const SubnormalMode scope(mode);
  const uint32_t wide = bits_of(static_cast<float>(half));
  return {wide, Half::from(float_of(wide)).bits};
}

// As on TensorFlow's threads, which treat subnormal operands and results as zero.
TEST(float16_does_not_depend_on_subnormal_floats) {
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Half half{static_cast<uint16_t>(bits)};
    const Conversions kept = converted(half, SubnormalMode::keep);
    const Conversions flushed = converted(half, SubnormalMode::flush);
    EXPECT_EQUAL(flushed.wide, kept.wide);
    EXPECT_EQUAL(flushed.narrow, kept.narrow);
  }
}
#endif
