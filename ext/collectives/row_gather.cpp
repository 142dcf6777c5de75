#include "collectives/row_gather.h"

#include <cstring>
#include <numeric>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/all_gather.h"
#include "common/check.h"

namespace easyddl {

RowGather::RowGather(std::vector<Table> tables)
    : tables_(std::move(tables)), gathered_(tables_.size()) {}

void RowGather::check(const std::vector<Rows>& rows) const {
  if (rows.size() != tables_.size()) {
    throw Error("Rows of " + std::to_string(rows.size()) +
                " sparse gradients were submitted, but " + std::to_string(tables_.size()) +
                " are registered.");
  }
  for (size_t t = 0; t < rows.size(); ++t) {
    const Table& table = tables_[t];
    const Rows& mine = rows[t];
    const std::string of = "The sparse gradient of " + table.name + " has ";
    if (mine.bytes != mine.count * table.row_bytes) {
      throw Error(of + std::to_string(mine.count) + " indices, and values of " +
                  std::to_string(mine.bytes) + " bytes, but a row of its variable has " +
                  std::to_string(table.row_bytes) + " bytes.");
    }
    for (size_t i = 0; i < mine.count; ++i) {
      const int64_t index = mine.indices[i];
      if (index >= 0 && static_cast<uint64_t>(index) < table.rows) continue;
      throw Error(of + "the index " + std::to_string(index) + ", but its variable has only " +
                  std::to_string(table.rows) + " rows.");
    }
  }
}

void RowGather::run(Communicator& communicator, const std::vector<Rows>& rows, double factor,
                    const AllocateRows& allocate_rows, const Fingerprint& fingerprint) {
  pack(rows, factor);
  std::vector<int64_t> words;
  all_gather(communicator, own_part_.data(), static_cast<int64_t>(own_part_.size()), sizeof(Word),
             fingerprint, [&](const std::vector<int64_t>& counts) {
               words = counts;
               all_parts_.resize(
                   static_cast<size_t>(std::accumulate(words.begin(), words.end(), int64_t{0})));
               return all_parts_.data();
             });
  const std::vector<size_t> counts = count_rows(words);
  for (size_t t = 0; t < tables_.size(); ++t) gathered_[t] += counts[t];
  if (rows.empty()) return;
  std::vector<RowOutput> outputs = allocate_rows(counts);
  const Word* part = all_parts_.data();
  for (int64_t each : words) {
    if (each > 0) unpack(part, outputs);
    part += each;
  }
}

// Returns the length of a table's rows in words. Values are padded, so that the next indices begin
// at a whole word.
size_t RowGather::words_of(size_t table, size_t count) const {
  return count + (count * tables_[table].row_bytes + sizeof(Word) - 1) / sizeof(Word);
}

void RowGather::pack(const std::vector<Rows>& rows, double factor) {
  size_t words = rows.size();
  for (size_t t = 0; t < rows.size(); ++t) words += words_of(t, rows[t].count);
  own_part_.resize(words);
  Word* to = own_part_.data();
  for (const Rows& each : rows) *to++ = static_cast<Word>(each.count);
  for (size_t t = 0; t < rows.size(); ++t) {
    const Rows& each = rows[t];
    const DType dtype = tables_[t].dtype;
    if (each.count > 0) std::memcpy(to, each.indices, each.count * sizeof(Word));
    scale(to + each.count, each.values, each.bytes / size_of(dtype), dtype, factor);
    to += words_of(t, each.count);
  }
}

// Returns how many rows of each table all ranks have. `words` holds the length of each rank's part.
std::vector<size_t> RowGather::count_rows(const std::vector<int64_t>& words) const {
  std::vector<size_t> counts(tables_.size());
  const Word* part = all_parts_.data();
  for (int64_t each : words) {
    for (size_t t = 0; each > 0 && t < counts.size(); ++t)
      counts[t] += static_cast<size_t>(part[t]);
    part += each;
  }
  return counts;
}

// Copies one rank's rows to the outputs, and moves the outputs' pointers behind them.
void RowGather::unpack(const Word* part, std::vector<RowOutput>& outputs) const {
  const Word* from = part + tables_.size();
  for (size_t t = 0; t < tables_.size(); ++t) {
    const size_t count = static_cast<size_t>(part[t]), bytes = count * tables_[t].row_bytes;
    if (count > 0) std::memcpy(outputs[t].indices, from, count * sizeof(Word));
    if (bytes > 0) std::memcpy(outputs[t].values, from + count, bytes);
    outputs[t].indices += count;
    outputs[t].values += bytes;
    from += words_of(t, count);
  }
}

}  // namespace easyddl
