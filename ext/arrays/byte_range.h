// A range of bytes, and how ranks divide it.
#pragma once

#include <algorithm>
#include <cstddef>

namespace easyddl {

struct ByteRange {
  size_t begin, end;

  size_t size() const { return end - begin; }
};

// Shards begin at multiples of this, so that no two ranks write to one cache line.
constexpr size_t kShardAlignment = 128;

// The shard of `owner`, when `owners` ranks divide the range.
inline ByteRange shard_of(const ByteRange& whole, int owner, int owners) {
  const size_t bytes = whole.size();
  const size_t n = static_cast<size_t>(owners), i = static_cast<size_t>(owner);
  const size_t each =
      ((bytes + n - 1) / n + kShardAlignment - 1) / kShardAlignment * kShardAlignment;
  return {whole.begin + std::min(bytes, i * each), whole.begin + std::min(bytes, (i + 1) * each)};
}

}  // namespace easyddl
