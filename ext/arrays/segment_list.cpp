#include "arrays/segment_list.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace easyddl {

size_t total_bytes(const std::vector<Segment>& arrays) {
  size_t total = 0;
  for (const Segment& array : arrays) total += array.bytes;
  return total;
}

SegmentList::SegmentList(std::vector<Segment> segments) : segments_(std::move(segments)) {
  size_t end = 0;
  ends_.reserve(segments_.size());
  for (const Segment& segment : segments_) ends_.push_back(end += segment.bytes);
}

size_t SegmentList::index_at(size_t offset) const {
  return static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), offset) - ends_.begin());
}

void SegmentList::copy_in(size_t begin, size_t end, uint8_t* to) const {
  for_each(begin, end, [to](const uint8_t* in, uint8_t*, size_t offset, size_t bytes) {
    std::memcpy(to + offset, in, bytes);
  });
}

void SegmentList::copy_out(size_t begin, size_t end, const uint8_t* from) const {
  for_each(begin, end, [from](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
    std::memcpy(out, from + offset, bytes);
  });
}

}  // namespace easyddl
