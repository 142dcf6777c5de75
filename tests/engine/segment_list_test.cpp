#include "arrays/segment_list.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "trial.h"

namespace {

using easyddl::Segment;
using easyddl::SegmentList;

// Arrays of these lengths, each in separate memory, so that sanitizers report an access beyond its
// end.
struct Arrays {
  explicit Arrays(const std::vector<size_t>& lengths) {
    uint8_t next = 0;
    for (size_t length : lengths) {
      std::vector<uint8_t> bytes(length);
      std::iota(bytes.begin(), bytes.end(), next);
      next = static_cast<uint8_t>(next + length);
      in.push_back(bytes);
      out.emplace_back(length, uint8_t{0xee});
    }
  }

  SegmentList segments() {
    std::vector<Segment> list;
    for (size_t i = 0; i < in.size(); ++i)
      list.push_back({in[i].data(), out[i].data(), in[i].size()});
    return SegmentList(list);
  }

  static std::vector<uint8_t> joined(const std::vector<std::vector<uint8_t>>& arrays) {
    std::vector<uint8_t> all;
    for (const auto& each : arrays) all.insert(all.end(), each.begin(), each.end());
    return all;
  }

  std::vector<std::vector<uint8_t>> in, out;
};

const std::vector<std::vector<size_t>> kLists{
    {}, {0}, {0, 0, 0}, {1}, {5}, {0, 3, 0, 0, 4, 0}, {1, 1, 1, 1}, {7, 0, 1, 0, 0, 11, 2, 0}};

}  // namespace

TEST(every_range_of_every_list_is_copied_in) {
  for (const auto& lengths : kLists) {
    Arrays arrays(lengths);
    const SegmentList segments = arrays.segments();
    const std::vector<uint8_t> all = Arrays::joined(arrays.in);
    EXPECT_EQUAL(segments.bytes(), all.size());
    for (size_t begin = 0; begin <= all.size(); ++begin) {
      for (size_t end = begin; end <= all.size(); ++end) {
        std::vector<uint8_t> to(end - begin);
        segments.copy_in(begin, end, to.data());
        EXPECT(std::equal(to.begin(), to.end(), all.begin() + static_cast<std::ptrdiff_t>(begin)));
      }
    }
  }
}

TEST(every_range_of_every_list_is_copied_out_and_nothing_beside_it) {
  for (const auto& lengths : kLists) {
    const size_t bytes = Arrays(lengths).segments().bytes();
    for (size_t begin = 0; begin <= bytes; ++begin) {
      for (size_t end = begin; end <= bytes; ++end) {
        Arrays arrays(lengths);
        std::vector<uint8_t> from(end - begin), expected(bytes, 0xee);
        std::iota(from.begin(), from.end(), uint8_t{1});
        std::copy(from.begin(), from.end(), expected.begin() + static_cast<std::ptrdiff_t>(begin));
        arrays.segments().copy_out(begin, end, from.data());
        EXPECT(Arrays::joined(arrays.out) == expected);
      }
    }
  }
}

TEST(parts_are_visited_in_order_and_none_is_empty) {
  for (const auto& lengths : kLists) {
    Arrays arrays(lengths);
    const SegmentList segments = arrays.segments();
    size_t at = 0;
    segments.for_each(0, segments.bytes(),
                      [&](const uint8_t*, uint8_t*, size_t offset, size_t bytes) {
                        EXPECT_EQUAL(offset, at);
                        EXPECT(bytes > 0);
                        at += bytes;
                      });
    EXPECT_EQUAL(at, segments.bytes());
  }
}

TEST(pieces_without_a_result_are_read) {
  const std::vector<uint8_t> bytes{1, 2, 3};
  const SegmentList segments({{bytes.data(), nullptr, 3}});
  size_t visits = 0;
  segments.for_each(1, 3, [&](const uint8_t* in, uint8_t* out, size_t, size_t) {
    EXPECT(out == nullptr && *in == 2);
    ++visits;
  });
  EXPECT_EQUAL(visits, size_t{1});
}
