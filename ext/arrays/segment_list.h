// A list of arrays seen as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace easyddl {

// One array: where it is read and where its result goes (they may be the same memory).
struct Segment {
  const uint8_t* in;
  uint8_t* out;
  size_t bytes;
};

size_t total_bytes(const std::vector<Segment>& arrays);

// The arrays of a list, laid end to end. Copying between this view and shared memory is the
// first and the last step of a collective, so that nothing is packed into a buffer before.
class SegmentList {
 public:
  explicit SegmentList(std::vector<Segment> segments);

  size_t bytes() const { return ends_.empty() ? 0 : ends_.back(); }

  // Copies the bytes [begin, end) of the inputs to `to`, or `from` to these of the outputs.
  void copy_in(size_t begin, size_t end, uint8_t* to) const;
  void copy_out(size_t begin, size_t end, const uint8_t* from) const;

  // Calls visit(in, out, offset, bytes) for each contiguous part of [begin, end), `offset`
  // counted from `begin`.
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
