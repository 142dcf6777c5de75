// The arrays that the ranks have registered in a reducer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"

namespace easyddl {

// Arrays of one dtype that are reduced together.
struct Bucket {
  DType dtype;
  std::vector<size_t> bytes;  // of each array
};

// The same on all ranks.
struct ReducerPlan {
  std::string what;  // for errors
  std::vector<Bucket> buckets;
  bool has_rows;  // whether rows of sparse gradients follow the last bucket
  std::optional<DType> wire = std::nullopt;  // for float32 between hosts, if there are several

  // Includes the bucket of the rows, which is the last.
  size_t num_buckets() const { return buckets.size() + (has_rows ? 1 : 0); }

  // The size of the largest bucket, with the control word.
  size_t most_bytes() const;

  // Returns a description of a bucket in a step.
  std::string text_of(size_t bucket, uint64_t step) const;

  // Throws an Error unless the arrays have the lengths of the bucket's arrays.
  void check(const std::vector<Segment>& arrays, size_t bucket) const;
};

}  // namespace easyddl
