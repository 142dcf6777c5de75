// The rows that all ranks have of some tables, brought together.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/rows.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// What a sparse gradient belongs to: a variable whose first dimension counts rows.
struct Table {
  std::string name;
  DType dtype;
  size_t rows;
  size_t row_bytes;
};

// How many rows each rank has differs by rank and step. So one all-gather of bytes serves all
// tables: each rank's part begins with its counts, and a rank that has no batch has no part.
class RowGather {
 public:
  explicit RowGather(std::vector<Table> tables);

  bool has_tables() const { return !tables_.empty(); }

  // Throws unless there are rows of each table, and each row is one of its table's.
  void check(const std::vector<Rows>& rows) const;

  // Collective over the communicator. Writes the rows of all ranks, in the ranks' order, where
  // `make_room` says; this one's `rows`, multiplied by `factor`, are among them. A rank without a
  // batch passes no rows, and learns nothing.
  void run(Communicator& communicator, const std::vector<Rows>& rows, double factor,
           const MakeRoom& make_room, const Fingerprint& fingerprint);

  // How many rows of each table all ranks together have had, in all steps.
  std::vector<uint64_t> gathered() const { return {gathered_.begin(), gathered_.end()}; }

 private:
  // The rows of one rank, in words of 8 bytes: the counts of all tables, and then of each table the
  // indices and the values.
  using Word = int64_t;
  void pack(const std::vector<Rows>& rows, double factor);
  size_t words_of(size_t table, size_t count) const;
  std::vector<size_t> count_rows(const std::vector<int64_t>& words) const;
  void unpack(const Word* part, std::vector<RowRoom>& room) const;

  const std::vector<Table> tables_;
  std::vector<Word> mine_, everyones_;  // kept, so that a step need not ask for memory again
  std::vector<std::atomic<uint64_t>> gathered_;
};

}  // namespace easyddl
