// The loops over elements. CMake compiles this file once for each instruction set. EASYDDL_KERNELS
// is the name of the object that it defines, and EASYDDL_INSTRUCTION_SET that of the instruction
// set.
//
// It must define no other symbol with external linkage. Otherwise the linker might use a function
// that was compiled here in place of the same function in another file, on a processor that cannot
// run it.
#include "arrays/kernels.h"

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "arrays/half.h"

namespace easyddl {
namespace {

// The number of elements processed at a time, so small that a block of accumulators stays in the
// first-level cache while all sources are added to it.
constexpr size_t kBlock = 1024;

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<Half> {
  using type = float;
};
template <>
struct Accumulator<BFloat16> {
  using type = float;
};
template <class T>
using accumulator_t = typename Accumulator<T>::type;

template <class T>
accumulator_t<T> widen(T value) {
  return static_cast<accumulator_t<T>>(value);
}

template <class T>
T narrow(accumulator_t<T> value) {
  if constexpr (std::is_same_v<T, accumulator_t<T>>) {
    return value;
  } else {
    return T::from(value);
  }
}

// Integers wrap around, as in numpy. Signed overflow is undefined, so the operation is unsigned.
template <class A, class F>
A wrapping(A a, A b, F f) {
  if constexpr (std::is_integral_v<A> && !std::is_same_v<A, bool>) {
    using Wide = std::make_unsigned_t<std::common_type_t<A, int>>;
    return static_cast<A>(f(static_cast<Wide>(a), static_cast<Wide>(b)));
  } else {
    return static_cast<A>(f(a, b));
  }
}

struct Sum {
  template <class A>
  static A apply(A a, A b) {
    return wrapping(a, b, [](auto x, auto y) { return x + y; });
  }
};
struct Prod {
  template <class A>
  static A apply(A a, A b) {
    return wrapping(a, b, [](auto x, auto y) { return x * y; });
  }
};
// A NaN on any rank gives a NaN in the result, as in numpy.minimum and numpy.maximum.
struct Min {
  template <class A>
  static A apply(A a, A b) {
    return (a < b || a != a) ? a : b;
  }
};
struct Max {
  template <class A>
  static A apply(A a, A b) {
    return (a > b || a != a) ? a : b;
  }
};

// Tells the compiler that the iterations of a loop are independent, because result and sources are
// either the same memory or do not overlap. Otherwise it would not use vector code if they are the
// same.
#if defined(__clang__)
#define EASYDDL_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EASYDDL_INDEPENDENT _Pragma("GCC ivdep")
#endif

template <class T, class F>
void fold(accumulator_t<T>* accumulator, const void* const* sources, size_t num_sources,
          size_t begin, size_t count) {
  const T* first = static_cast<const T*>(sources[0]) + begin;
  if (num_sources == 1) {
    for (size_t i = 0; i < count; ++i) accumulator[i] = widen(first[i]);
    return;
  }
  const T* second = static_cast<const T*>(sources[1]) + begin;
  EASYDDL_INDEPENDENT
  for (size_t i = 0; i < count; ++i) {
    accumulator[i] = F::apply(widen(first[i]), widen(second[i]));
  }
  for (size_t s = 2; s < num_sources; ++s) {
    const T* next = static_cast<const T*>(sources[s]) + begin;
    EASYDDL_INDEPENDENT
    for (size_t i = 0; i < count; ++i) accumulator[i] = F::apply(accumulator[i], widen(next[i]));
  }
}

template <class T>
void round_off(T* result, const accumulator_t<T>* accumulator, size_t count, int divisor) {
  using A = accumulator_t<T>;
  if constexpr (std::is_floating_point_v<A>) {
    if (divisor != 1) {
      const A by = static_cast<A>(divisor);
      EASYDDL_INDEPENDENT
      for (size_t i = 0; i < count; ++i) result[i] = narrow<T>(accumulator[i] / by);
      return;
    }
  }
  for (size_t i = 0; i < count; ++i) result[i] = narrow<T>(accumulator[i]);
}

template <class T>
void divide(T* values, size_t count, int divisor) {
  if constexpr (std::is_floating_point_v<T>) {
    if (divisor != 1) round_off(values, values, count, divisor);
  }
}

template <class T>
struct Tag {
  using type = T;
};

template <class Body>
void with_dtype(DType dtype, Body body) {
  switch (dtype) {
    case DType::float16:
      return body(Tag<Half>{});
    case DType::bfloat16:
      return body(Tag<BFloat16>{});
    case DType::float32:
      return body(Tag<float>{});
    case DType::float64:
      return body(Tag<double>{});
    case DType::int8:
      return body(Tag<int8_t>{});
    case DType::int16:
      return body(Tag<int16_t>{});
    case DType::int32:
      return body(Tag<int32_t>{});
    case DType::int64:
      return body(Tag<int64_t>{});
    case DType::uint8:
      return body(Tag<uint8_t>{});
    case DType::boolean:
      return body(Tag<bool>{});
  }
}

template <class Body>
void with_op(Op op, Body body) {
  switch (op) {
    case Op::sum:
    case Op::mean:
      return body(Tag<Sum>{});
    case Op::min:
      return body(Tag<Min>{});
    case Op::max:
      return body(Tag<Max>{});
    case Op::prod:
      return body(Tag<Prod>{});
  }
}

size_t least(size_t a, size_t b) { return a < b ? a : b; }

bool is_among(const void* array, const void* const* sources, size_t begin, size_t end) {
  for (size_t s = begin; s < end; ++s) {
    if (sources[s] == array) return true;
  }
  return false;
}

int divisor_of(Op op, int divisor) { return op == Op::mean ? divisor : 1; }

void accumulate(void* accumulator, const void* const* sources, size_t num_sources, size_t count,
                DType dtype, Op op) {
  with_dtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_op(op, [&](auto function) {
      using F = typename decltype(function)::type;
      auto* into = static_cast<accumulator_t<T>*>(accumulator);
      for (size_t begin = 0; begin < count; begin += kBlock) {
        fold<T, F>(into + begin, sources, num_sources, begin, least(kBlock, count - begin));
      }
    });
  });
}

void finish(void* result, const void* accumulator, size_t count, DType dtype, Op op, int divisor) {
  with_dtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    round_off(static_cast<T*>(result), static_cast<const accumulator_t<T>*>(accumulator), count,
              divisor_of(op, divisor));
  });
}

void accumulate_and_finish(void* result, const void* const* sources, size_t num_sources,
                           size_t count, DType dtype, Op op, int divisor) {
  with_dtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    with_op(op, [&](auto function) {
      using F = typename decltype(function)::type;
      // Accumulates in the result if the types are the same, so that reading and writing overlap.
      // This is not possible if the result is also a source after the second, which is read later.
      if constexpr (std::is_same_v<T, accumulator_t<T>>) {
        if (!is_among(result, sources, 2, num_sources)) {
          auto* into = static_cast<T*>(result);
          for (size_t begin = 0; begin < count; begin += kBlock) {
            const size_t length = least(kBlock, count - begin);
            fold<T, F>(into + begin, sources, num_sources, begin, length);
            divide(into + begin, length, divisor_of(op, divisor));
          }
          return;
        }
      }
      accumulator_t<T> block[kBlock];
      for (size_t begin = 0; begin < count; begin += kBlock) {
        const size_t length = least(kBlock, count - begin);
        fold<T, F>(block, sources, num_sources, begin, length);
        round_off(static_cast<T*>(result) + begin, block, length, divisor_of(op, divisor));
      }
    });
  });
}

void scale(void* result, const void* source, size_t count, DType dtype, double factor) {
  with_dtype(dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    using A = accumulator_t<T>;
    if constexpr (std::is_floating_point_v<A>) {
      const auto* in = static_cast<const T*>(source);
      auto* out = static_cast<T*>(result);
      const A by = static_cast<A>(factor);
      for (size_t i = 0; i < count; ++i) out[i] = narrow<T>(widen(in[i]) * by);
    }
  });
}

}  // namespace

extern const Kernels EASYDDL_KERNELS;
const Kernels EASYDDL_KERNELS{EASYDDL_INSTRUCTION_SET, accumulate, finish, accumulate_and_finish,
                              scale};

}  // namespace easyddl
