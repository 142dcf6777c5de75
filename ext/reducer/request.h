// A request that a thread submits to a reducer.
#pragma once

#include <cstdint>
#include <vector>

#include "arrays/rows.h"
#include "arrays/segment_list.h"
#include "reducer/registry.h"

namespace easyddl {

// The arrays of whole buckets, or the rows of all tables.
struct Request {
  std::vector<Segment> arrays;
  double weight;  // of this rank's batch
  Done done;
  int64_t submitted_at;  // for the timeline; 0 if none is written
  std::vector<Rows> rows;
  AllocateRows allocate_rows;
};

}  // namespace easyddl
