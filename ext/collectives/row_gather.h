// Gathers the rows of sparse gradients of all ranks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/rows.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// The variable of a sparse gradient. Its first dimension counts rows.
struct Table {
  std::string name;
  DType dtype;
  size_t rows;
  size_t row_bytes;
  DType wire = dtype;  // in which values are sent
};

// The number of rows differs by rank and step. One all-gather of bytes serves all tables: each
// rank's part begins with its counts, and a rank that has no batch sends no part.
class RowGather {
 public:
  // Values of float32 are sent in the type `wire`: each is rounded once, for all ranks alike.
  RowGather(std::vector<Table> tables, std::optional<DType> wire);

  // Throws an Error unless there are rows for each table, and all indices are within the table.
  void check(const std::vector<Rows>& rows) const;

  // Collective over the communicator. Writes the rows of all ranks, in the order of the ranks, to
  // the outputs that `allocate_rows` returns. This rank contributes `rows`, multiplied by `factor`.
  // A rank without a batch passes no rows, and gets no outputs.
  void run(Communicator& communicator, const std::vector<Rows>& rows, double factor,
           const AllocateRows& allocate_rows, const Fingerprint& fingerprint);

  // Frees the buffers. MPI never uses them: see ChunkStream.
  void release();

  // Returns how many rows of each table all ranks together have had in all steps.
  std::vector<uint64_t> gathered() const { return {gathered_.begin(), gathered_.end()}; }

 private:
  // One rank's part is in words of 8 bytes: the counts of all tables, and then the indices and the
  // values of each table. Before values of float16 comes the exponent of the power of two by which
  // they were multiplied.
  using Word = int64_t;
  void pack(const std::vector<Rows>& rows, double factor);
  void pack_values(const Table& table, const Rows& rows, double factor, Word* to);
  size_t words_of(size_t table, size_t count) const;
  std::vector<size_t> count_rows(const std::vector<int64_t>& words) const;
  void unpack(const Word* part, std::vector<RowOutput>& outputs) const;

  std::vector<Table> tables_;
  std::vector<Word> own_part_, all_parts_;  // kept, so that a step allocates no memory
  std::vector<float> wide_;                 // the values of a table before they are rounded
  std::vector<std::atomic<uint64_t>> gathered_;
};

}  // namespace easyddl
