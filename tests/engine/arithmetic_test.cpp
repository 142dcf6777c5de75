#include "arrays/arithmetic.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "arrays/half.h"
#include "arrays/kernels.h"
#include "common/subnormal_mode.h"
#include "trial.h"

namespace {

using namespace easyddl;

constexpr Op kOps[]{Op::sum, Op::mean, Op::min, Op::max, Op::prod};
// Numbers of elements around a block of the reduction, and around a vector of the processor.
constexpr size_t kCounts[]{0, 1, 7, 16, 1023, 1024, 1025, 3001};

template <class T>
constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

template <class T>
using wide_t = std::conditional_t<is_half<T>, float, T>;

template <class T>
T random_element(std::mt19937_64& random) {
  if constexpr (std::is_same_v<T, bool>) {
    return random() % 2 == 0;
  } else if constexpr (is_half<T>) {
    // Every bit pattern, including NaN and infinity.
    return T{static_cast<uint16_t>(random())};
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(random());
  } else {
    const uint64_t die = random() % 64;
    if (die == 0) return std::numeric_limits<T>::quiet_NaN();
    if (die == 1) return std::numeric_limits<T>::infinity();
    return static_cast<T>(std::normal_distribution<double>(0, 100)(random));
  }
}

// Computes one step of the reduction by the definition of the operator.
template <class W>
W combined(W a, W b, Op op) {
  if constexpr (std::is_same_v<W, bool>) {
    return op == Op::sum || op == Op::mean || op == Op::max ? a || b : a && b;
  } else if constexpr (std::is_integral_v<W>) {
    // Modulo 2^64, and so modulo any smaller power of two.
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    if (op == Op::prod) return static_cast<W>(x * y);
    if (op == Op::min) return std::min(a, b);
    if (op == Op::max) return std::max(a, b);
    return static_cast<W>(x + y);
  } else {
    if (op == Op::prod) return a * b;
    if (op == Op::sum || op == Op::mean) return a + b;
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<W>::quiet_NaN();
    return op == Op::min ? std::min(a, b) : std::max(a, b);
  }
}

template <class T>
wide_t<T> widened(T value) {
  return static_cast<wide_t<T>>(value);
}

// The mean of integers is left as a sum.
template <class T>
T rounded(wide_t<T> value, Op op, int divisor) {
  if constexpr (std::is_floating_point_v<wide_t<T>>) {
    if (op == Op::mean) value /= static_cast<wide_t<T>>(divisor);
  }
  if constexpr (is_half<T>) {
    return T::from(value);
  } else {
    return value;
  }
}

template <class T>
bool same(T a, T b) {
  if constexpr (is_half<T>) {
    return same(widened(a), widened(b));
  } else if constexpr (std::is_floating_point_v<T>) {
    return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof a) == 0;
  } else {
    return a == b;
  }
}

// std::vector<bool> does not store an array of bool.
template <class T>
class Array {
 public:
  explicit Array(size_t count) : bytes_(count * sizeof(T)) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data()); }
  T& operator[](size_t i) { return data()[i]; }

 private:
  std::vector<uint8_t> bytes_;
};

template <class T>
void check_reduction(DType dtype, Op op, size_t num_sources, size_t count,
                     std::mt19937_64& random) {
  std::vector<Array<T>> inputs(num_sources, Array<T>(count));
  std::vector<const void*> sources;
  for (Array<T>& input : inputs) {
    for (size_t i = 0; i < count; ++i) input[i] = random_element<T>(random);
    sources.push_back(input.data());
  }
  const int divisor = static_cast<int>(num_sources);
  Array<wide_t<T>> partial(count);
  Array<T> in_two(count), in_one(count);
  accumulate(partial.data(), sources.data(), num_sources, count, dtype, op);
  finish(in_two.data(), partial.data(), count, dtype, op, divisor);
  accumulate_and_finish(in_one.data(), sources.data(), num_sources, count, dtype, op, divisor);
  for (size_t i = 0; i < count; ++i) {
    wide_t<T> total = widened(inputs[0][i]);
    for (size_t s = 1; s < num_sources; ++s) total = combined(total, widened(inputs[s][i]), op);
    const T expected = rounded<T>(total, op, divisor);
    EXPECT(same(partial[i], total));
    EXPECT(same(in_two[i], expected));
    EXPECT(same(in_one[i], expected));
  }
  // The result may be the same memory as any source.
  for (size_t s = 0; s < num_sources; ++s) {
    Array<T> replaced = inputs[s];
    sources[s] = replaced.data();
    accumulate_and_finish(replaced.data(), sources.data(), num_sources, count, dtype, op, divisor);
    sources[s] = inputs[s].data();
    for (size_t i = 0; i < count; ++i) EXPECT(same(replaced[i], in_one[i]));
  }
}

template <class T>
void check_dtype(DType dtype) {
  EXPECT_EQUAL(size_of(dtype), sizeof(T));
  EXPECT_EQUAL(size_of(accumulator_of(dtype)), sizeof(wide_t<T>));
  // All sets of kernels get the same inputs, and must give the bits of one plain loop.
  for (const Kernels* each : usable_kernels()) {
    use_kernels(*each);
    std::mt19937_64 random(static_cast<uint64_t>(dtype));
    for (Op op : kOps) {
      for (size_t num_sources = 1; num_sources <= 5; ++num_sources) {
        for (size_t count : kCounts) check_reduction<T>(dtype, op, num_sources, count, random);
      }
    }
  }
}

template <class T>
void check_scale(DType dtype) {
  constexpr double kFactor = 1.0 / 3;
  for (const Kernels* each : usable_kernels()) {
    use_kernels(*each);
    std::mt19937_64 random(7);
    for (size_t count : kCounts) {
      Array<T> input(count), output(count);
      for (size_t i = 0; i < count; ++i) input[i] = random_element<T>(random);
      scale(output.data(), input.data(), count, dtype, kFactor);
      for (size_t i = 0; i < count; ++i) {
        const wide_t<T> expected = widened(input[i]) * static_cast<wide_t<T>>(kFactor);
        EXPECT(same(output[i], rounded<T>(expected, Op::sum, 1)));
      }
    }
  }
}

}  // namespace

TEST(float16_is_reduced_as_by_a_loop) { check_dtype<Half>(DType::float16); }
TEST(bfloat16_is_reduced_as_by_a_loop) { check_dtype<BFloat16>(DType::bfloat16); }
TEST(float32_is_reduced_as_by_a_loop) { check_dtype<float>(DType::float32); }
TEST(float64_is_reduced_as_by_a_loop) { check_dtype<double>(DType::float64); }
TEST(int8_is_reduced_as_by_a_loop) { check_dtype<int8_t>(DType::int8); }
TEST(int16_is_reduced_as_by_a_loop) { check_dtype<int16_t>(DType::int16); }
TEST(int32_is_reduced_as_by_a_loop) { check_dtype<int32_t>(DType::int32); }
TEST(int64_is_reduced_as_by_a_loop) { check_dtype<int64_t>(DType::int64); }
TEST(uint8_is_reduced_as_by_a_loop) { check_dtype<uint8_t>(DType::uint8); }
TEST(bool_is_reduced_as_by_a_loop) { check_dtype<bool>(DType::boolean); }

TEST(floats_are_scaled_as_by_a_loop) {
  check_scale<Half>(DType::float16);
  check_scale<BFloat16>(DType::bfloat16);
  check_scale<float>(DType::float32);
  check_scale<double>(DType::float64);
  const std::string error = trial::error_of([] { scale(nullptr, nullptr, 0, DType::int32, 1.0); });
  EXPECT_CONTAINS(error, "Only floating-point gradients");
}

// A sum within a step is computed on a thread of the framework on some ranks, and on a thread of
// easyddl on others.
TEST(subnormal_floats_are_reduced_alike_in_all_threads) {
  constexpr float kSmallest = std::numeric_limits<float>::denorm_min();
  const std::vector<float> first(19, 3 * kSmallest), second(19, 4 * kSmallest);
  const void* const sources[]{first.data(), second.data()};
  const SubnormalMode mode(SubnormalMode::flush);
  for (const Kernels* each : usable_kernels()) {
    use_kernels(*each);
    for (const size_t count : {size_t{1}, first.size()}) {
      std::vector<float> sum(count), scaled(count);
      accumulate_and_finish(sum.data(), sources, 2, count, DType::float32, Op::sum, 1);
      scale(scaled.data(), sum.data(), count, DType::float32, 2.0);
      for (size_t i = 0; i < count; ++i) {
        // Compared as bits, because this thread treats subnormal floats as zero.
        EXPECT_EQUAL(bits_of(sum[i]), uint32_t{7});
        EXPECT_EQUAL(bits_of(scaled[i]), uint32_t{14});
      }
    }
  }
  const volatile float subnormal = 3 * kSmallest;
  const float product = subnormal * 2;
  EXPECT_EQUAL(bits_of(product), uint32_t{0});  // this thread's mode is as it was
}

TEST(the_fastest_usable_kernels_are_in_use) { EXPECT(&kernels() == usable_kernels().back()); }

TEST(names_of_dtypes_and_operators_are_known) {
  EXPECT(parse_dtype("bfloat16") == DType::bfloat16 && parse_dtype("bool") == DType::boolean);
  EXPECT(parse_op("mean") == Op::mean && parse_op("prod") == Op::prod);
  EXPECT_CONTAINS(trial::error_of([] { parse_dtype("complex64"); }), "dtype complex64");
  EXPECT_CONTAINS(trial::error_of([] { parse_op("xor"); }), "do not support the operator xor");
}
