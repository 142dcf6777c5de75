#include "reducer/reducer_plan.h"

#include <algorithm>
#include <numeric>

#include "common/check.h"
#include "reducer/control_word.h"

namespace easyddl {

size_t ReducerPlan::most_bytes() const {
  size_t most = 0;
  for (const Bucket& bucket : buckets) {
    most = std::max(most, std::accumulate(bucket.bytes.begin(), bucket.bytes.end(), size_t{0}));
  }
  return most + sizeof(ControlWord::Floats);
}

std::string ReducerPlan::text_of(size_t bucket, uint64_t step) const {
  return "bucket " + std::to_string(bucket + 1) + " of " + std::to_string(num_buckets()) +
         " in step " + std::to_string(step) + " of " + what;
}

void ReducerPlan::check(const std::vector<Segment>& arrays, size_t bucket) const {
  const std::vector<size_t>& registered = buckets[bucket].bytes;
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].bytes == registered[i]) continue;
    throw Error("Array " + std::to_string(i) + " of bucket " + std::to_string(bucket) + " of " +
                what + " has " + std::to_string(arrays[i].bytes) + " bytes, but " +
                std::to_string(registered[i]) + " were registered.");
  }
}

}  // namespace easyddl
