// Rows of the tables that sparse gradients belong to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace easyddl {

// One rank's rows of one table: an index each, which may come several times, and values.
struct Rows {
  const int64_t* indices;
  size_t count;
  const uint8_t* values;
  size_t bytes;  // of all values
};

// Where all ranks' rows of one table go.
struct RowRoom {
  int64_t* indices;
  uint8_t* values;
};

// Makes room for all ranks' rows, `counts` of each table. May throw a std::exception.
using MakeRoom = std::function<std::vector<RowRoom>(const std::vector<size_t>& counts)>;

}  // namespace easyddl
