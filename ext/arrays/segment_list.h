// A list of arrays that is treated as one array.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace easyddl {

// One array: its input and the memory for its result, which may be the same.
struct Segment {
  const uint8_t* in;
  uint8_t* out;
  size_t bytes;
};

size_t total_bytes(const std::vector<Segment>& arrays);

// The concatenation of the arrays of a list. A collective copies between this view and shared
// memory in its first and last step, so that arrays are not packed into a buffer before.
class SegmentList {
 public:
  explicit SegmentList(std::vector<Segment> segments);

  size_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }

  // `copy_in` copies the bytes [begin, end) of the inputs to `to`. `copy_out` copies `from` to this
  // range of the outputs.
  void copy_in(size_t begin, size_t end, uint8_t* to) const;
  void copy_out(size_t begin, size_t end, const uint8_t* from) const;

  // Calls visit(in, out, offset, bytes) for each contiguous part of [begin, end). `offset` is
  // relative to `begin`.
  template <class Visit>
  void for_each(size_t begin, size_t end, Visit visit) const {
    size_t i = index_at(begin);
    for (size_t at = begin; at < end; ++i) {
      const size_t start = ends_[i] - segments_[i].bytes;
      const size_t stop = ends_[i] < end ? ends_[i] : end;
      if (stop == at) continue;
      uint8_t* out = segments_[i].out == nullptr ? nullptr : segments_[i].out + (at - start);
      visit(segments_[i].in + (at - start), out, at - begin, stop - at);
      at = stop;
    }
  }

 private:
  size_t index_at(size_t offset) const;

  std::vector<Segment> segments_;
  std::vector<size_t> ends_;
};

}  // namespace easyddl
