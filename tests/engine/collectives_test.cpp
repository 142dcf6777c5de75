// The collectives on any number of ranks and hosts. Each rank has different numbers, small
// integers, so that a sum is exact in every dtype and in any order.
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "arrays/half.h"
#include "collectives/all_gather.h"
#include "collectives/all_to_all.h"
#include "collectives/allreduce.h"
#include "collectives/barrier.h"
#include "collectives/broadcast.h"
#include "collectives/communicator.h"
#include "collectives/reduce_scatter.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

// A chunk has 256 KiB on one host and 1 MiB on several. These numbers are around both sizes, and
// larger.
constexpr size_t kCounts[]{0, 1, 2, 3, 31, 127, 2039, 2053, 65537, 200003, 524309, 1100009};
constexpr size_t kFew[]{1, 1031, 140009};
constexpr Op kOps[]{Op::sum, Op::mean, Op::min, Op::max, Op::prod};

template <class T>
constexpr bool is_half = std::is_same_v<T, Half> || std::is_same_v<T, BFloat16>;

int number_of(int rank, size_t i) {
  return 1 + static_cast<int>((i * 7 + i / 1000 + i % 3 * static_cast<size_t>(rank)) % 3);
}

template <class T>
T element(double number) {
  if constexpr (is_half<T>) {
    return T::from(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

// Returns the reduction of the ranks' numbers before it is rounded to the dtype. As bools all
// numbers are true.
template <class T>
T expected(Op op, size_t i) {
  const int size = ranks::size();
  int sum = 0, low = 100, high = 0, product = 1;
  for (int rank = 0; rank < size; ++rank) {
    const int number = number_of(rank, i);
    sum += number;
    product *= number;
    low = std::min(low, number);
    high = std::max(high, number);
  }
  if (op == Op::min) return element<T>(low);
  if (op == Op::max) return element<T>(high);
  if (op == Op::prod) return element<T>(product);
  if constexpr (is_half<T> || std::is_same_v<T, float>) {
    if (op == Op::mean) return element<T>(static_cast<float>(sum) / static_cast<float>(size));
  } else if constexpr (std::is_same_v<T, double>) {
    if (op == Op::mean) return sum / static_cast<double>(size);
  }
  return element<T>(sum);
}

// A rank's arrays of one dtype. The numbers are divided at odd positions, and some arrays are
// empty.
template <class T>
struct Arrays {
  Arrays(int rank, size_t count) : in(count * sizeof(T)), out(in.size(), 0xee) {
    for (size_t i = 0; i < count; ++i) store(i, element<T>(number_of(rank, i)));
  }

  void store(size_t i, T value) { std::memcpy(in.data() + i * sizeof(T), &value, sizeof value); }

  T result(size_t i) const {
    T value;
    std::memcpy(&value, out.data() + i * sizeof(T), sizeof value);
    return value;
  }

  SegmentList segments(bool in_place = false) {
    const size_t count = in.size() / sizeof(T);
    if (in_place) out = in;
    const uint8_t* const from = in_place ? out.data() : in.data();
    std::vector<Segment> list{{nullptr, nullptr, 0}};
    size_t begin = 0;
    for (size_t end : {count / 7, count / 7, count / 2, count - count / 5, count}) {
      const size_t at = begin * sizeof(T);
      list.push_back({from + at, out.data() + at, (end - begin) * sizeof(T)});
      begin = end;
    }
    list.push_back({nullptr, nullptr, 0});
    return SegmentList(list);
  }

  std::vector<uint8_t> in, out;
};

template <class T>
bool equal(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class T>
void check_allreduce(Communicator& communicator, DType dtype, Op op, size_t count,
                     bool in_place = false) {
  Arrays<T> arrays(ranks::rank(), count);
  const std::string what = "allreduce of " + std::to_string(count);
  allreduce(communicator, arrays.segments(in_place), dtype, op, Fingerprint(what));
  for (size_t i = 0; i < count; ++i) EXPECT(equal(arrays.result(i), expected<T>(op, i)));
}

template <class T>
void check_dtype(DType dtype) {
  Communicator communicator(ranks::world());
  for (Op op : kOps) {
    for (size_t count : kFew) check_allreduce<T>(communicator, dtype, op, count);
  }
}

}  // namespace

TEST(float32_of_any_size_is_reduced) {
  Communicator communicator(ranks::world());
  for (size_t count : kCounts) {
    check_allreduce<float>(communicator, DType::float32, Op::sum, count);
    check_allreduce<float>(communicator, DType::float32, Op::mean, count, true);
  }
}

TEST(float16_is_reduced_by_any_op) { check_dtype<Half>(DType::float16); }
TEST(bfloat16_is_reduced_by_any_op) { check_dtype<BFloat16>(DType::bfloat16); }
TEST(float32_is_reduced_by_any_op) { check_dtype<float>(DType::float32); }
TEST(float64_is_reduced_by_any_op) { check_dtype<double>(DType::float64); }
TEST(int8_is_reduced_by_any_op) { check_dtype<int8_t>(DType::int8); }
TEST(int16_is_reduced_by_any_op) { check_dtype<int16_t>(DType::int16); }
TEST(int32_is_reduced_by_any_op) { check_dtype<int32_t>(DType::int32); }
TEST(int64_is_reduced_by_any_op) { check_dtype<int64_t>(DType::int64); }
TEST(uint8_is_reduced_by_any_op) { check_dtype<uint8_t>(DType::uint8); }
TEST(bool_is_reduced_by_any_op) { check_dtype<bool>(DType::boolean); }

TEST(many_arrays_are_reduced_as_one) {
  Communicator communicator(ranks::world());
  std::vector<std::vector<float>> arrays;
  std::vector<Segment> segments;
  for (size_t i = 0; i < 3000; ++i) {
    arrays.emplace_back(i % 5 == 0 ? 0 : i % 97, static_cast<float>(ranks::rank()));
  }
  for (std::vector<float>& array : arrays) {
    auto* bytes = reinterpret_cast<uint8_t*>(array.data());
    segments.push_back({bytes, bytes, array.size() * sizeof(float)});
  }
  allreduce(communicator, SegmentList(segments), DType::float32, Op::max, Fingerprint("many"));
  for (const std::vector<float>& array : arrays) {
    for (float each : array) EXPECT_EQUAL(each, static_cast<float>(ranks::size() - 1));
  }
}

TEST(every_rank_can_broadcast) {
  Communicator communicator(ranks::world());
  for (int root = 0; root < ranks::size(); ++root) {
    for (size_t count : kCounts) {
      Arrays<uint8_t> arrays(ranks::rank(), count), of_root(root, count);
      broadcast(communicator, arrays.segments(), root, Fingerprint("broadcast"));
      EXPECT(ranks::rank() == root || arrays.out == of_root.in);
    }
  }
}

TEST(values_are_gathered) {
  Communicator communicator(ranks::world());
  const std::vector<int64_t> all =
      gather_values(communicator, -3 * ranks::rank(), Fingerprint("values"));
  EXPECT_EQUAL(all.size(), static_cast<size_t>(ranks::size()));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    EXPECT_EQUAL(all[rank], -3 * static_cast<int64_t>(rank));
  }
}

TEST(ranks_gather_different_lengths) {
  Communicator communicator(ranks::world());
  for (size_t count : kCounts) {
    std::vector<int64_t> counts;
    std::vector<uint8_t> expected;
    for (int rank = 0; rank < ranks::size(); ++rank) {
      // Rank 1 has nothing.
      const size_t length = rank == 1 ? 0 : count / 2 + static_cast<size_t>(rank);
      const std::vector<uint8_t> theirs = Arrays<uint8_t>(rank, length * 3).in;
      counts.push_back(static_cast<int64_t>(length));
      expected.insert(expected.end(), theirs.begin(), theirs.end());
    }
    const size_t length = static_cast<size_t>(counts[static_cast<size_t>(ranks::rank())]);
    const Arrays<uint8_t> mine(ranks::rank(), length * 3);
    std::vector<uint8_t> all(expected.size());
    all_gather(communicator, mine.in.data(), static_cast<int64_t>(length), 3, Fingerprint("rows"),
               [&](const std::vector<int64_t>& found) {
                 EXPECT(found == counts);
                 return all.data();
               });
    EXPECT(all == expected);
  }
}

TEST(ranks_gather_structs) {
  Communicator communicator(ranks::world());
  const std::array<int, 3> mine{7, ranks::rank(), -ranks::rank()};
  const auto all = all_gather(communicator, mine, Fingerprint("structs"));
  EXPECT_EQUAL(all.size(), static_cast<size_t>(ranks::size()));
  for (int rank = 0; rank < ranks::size(); ++rank) {
    EXPECT((all[static_cast<size_t>(rank)] == std::array<int, 3>{7, rank, -rank}));
  }
}

TEST(ranks_send_different_lengths_to_each_other) {
  Communicator communicator(ranks::world());
  const auto length = [](int from, int to) { return from == 1 ? 0 : 5 * from + 3 * to + 1; };
  const auto value = [](int from, int to, int i) { return 100 * from + 10 * to + i; };
  const int me = ranks::rank();
  std::vector<int64_t> sends, receives;
  std::vector<int32_t> in, expected;
  for (int other = 0; other < ranks::size(); ++other) {
    sends.push_back(length(me, other));
    receives.push_back(length(other, me));
    for (int i = 0; i < length(me, other); ++i) in.push_back(value(me, other, i));
    for (int i = 0; i < length(other, me); ++i) expected.push_back(value(other, me, i));
  }
  std::vector<int32_t> out(expected.size());
  all_to_all(communicator, in.data(), sends, sizeof(int32_t), Fingerprint("to all"),
             [&](const std::vector<int64_t>& found) {
               EXPECT(found == receives);
               return out.data();
             });
  EXPECT(out == expected);
}

TEST(parts_are_reduced_for_their_ranks) {
  Communicator communicator(ranks::world());
  const size_t size = static_cast<size_t>(ranks::size()), me = static_cast<size_t>(ranks::rank());
  for (size_t count : {0, 1, 13, 70001}) {
    Arrays<Half> arrays(ranks::rank(), count * size);
    std::vector<Half> out(count);
    reduce_scatter(communicator, arrays.in.data(), out.data(), count, DType::float16, Op::mean,
                   Fingerprint("reduce_scatter"));
    for (size_t i = 0; i < count; ++i) {
      EXPECT(equal(out[i], expected<Half>(Op::mean, me * count + i)));
    }
  }
}

TEST(ranks_meet_at_barriers) {
  Communicator communicator(ranks::world());
  for (int i = 0; i < 200; ++i) barrier(communicator, Fingerprint("barrier " + std::to_string(i)));
}

TEST(collectives_of_all_kinds_follow_each_other) {
  Communicator communicator(ranks::world());
  for (int round = 0; round < 50; ++round) {
    check_allreduce<float>(communicator, DType::float32, Op::sum, round % 2 == 0 ? 5 : 70001);
    barrier(communicator, Fingerprint("barrier"));
    Arrays<uint8_t> arrays(ranks::rank(), 1009), of_root(0, 1009);
    broadcast(communicator, arrays.segments(), 0, Fingerprint("broadcast"));
    EXPECT(ranks::rank() == 0 || arrays.out == of_root.in);
    gather_values(communicator, round, Fingerprint("values"));
  }
}
