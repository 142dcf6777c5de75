// Rows of the tables that sparse gradients belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace easyddl {

// One rank's rows of one table. Each row has an index and values; indices may repeat.
struct Rows {
  const int64_t* indices;
  size_t count;
  const uint8_t* values;
  size_t bytes;  // of all values
};

// The memory for all ranks' rows of one table.
struct RowOutput {
  int64_t* indices;
  uint8_t* values;
};

// Allocates memory for all ranks' rows. `counts` holds their number for each table. May throw a
// std::exception.
using AllocateRows = std::function<std::vector<RowOutput>(const std::vector<size_t>& counts)>;

}  // namespace easyddl
