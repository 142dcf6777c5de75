#include "collectives/row_gather.h"

#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/all_gather.h"
#include "common/check.h"

namespace easyddl {
namespace {

bool has_exponent(const Table& table) {
  return table.wire != table.dtype && table.wire == DType::float16;
}

// Writes so many bytes of values in the type of their table.
void unpack_values(const Table& table, const int64_t* from, uint8_t* to, size_t bytes) {
  if (table.wire == table.dtype) {
    std::memcpy(to, from, bytes);
    return;
  }
  const size_t count = bytes / size_of(table.dtype);
  const int exponent = has_exponent(table) ? static_cast<int>(*from++) : 0;
  const void* const sent = from;
  accumulate(to, &sent, 1, count, table.wire, Op::sum);
  if (exponent != 0) scale(to, to, count, table.dtype, std::ldexp(1.0, -exponent));
}

}  // namespace

RowGather::RowGather(std::vector<Table> tables, std::optional<DType> wire)
    : tables_(std::move(tables)), gathered_(tables_.size()) {
  for (Table& each : tables_) {
    if (wire && each.dtype == DType::float32) each.wire = *wire;
  }
}

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

void RowGather::release() {
  // Not `= {}`, which would keep the memory.
  own_part_ = std::vector<Word>();
  all_parts_ = std::vector<Word>();
  wide_ = std::vector<float>();
}

// Returns the length of a table's rows in words. Values are padded, so that the next indices begin
// at a whole word.
size_t RowGather::words_of(size_t table, size_t count) const {
  const Table& of = tables_[table];
  const size_t bytes = count * of.row_bytes / size_of(of.dtype) * size_of(of.wire);
  const size_t exponents = has_exponent(of) ? 1 : 0;
  return count + exponents + (bytes + sizeof(Word) - 1) / sizeof(Word);
}

void RowGather::pack(const std::vector<Rows>& rows, double factor) {
  size_t words = rows.size();
  for (size_t t = 0; t < rows.size(); ++t) words += words_of(t, rows[t].count);
  own_part_.resize(words);
  Word* to = own_part_.data();
  for (const Rows& each : rows) *to++ = static_cast<Word>(each.count);
  for (size_t t = 0; t < rows.size(); ++t) {
    const Rows& each = rows[t];
    if (each.count > 0) std::memcpy(to, each.indices, each.count * sizeof(Word));
    pack_values(tables_[t], each, factor, to + each.count);
    to += words_of(t, each.count);
  }
}

void RowGather::pack_values(const Table& table, const Rows& rows, double factor, Word* to) {
  const size_t count = rows.bytes / size_of(table.dtype);
  if (table.wire == table.dtype) return scale(to, rows.values, count, table.dtype, factor);
  wide_.resize(count);
  scale(wide_.data(), rows.values, count, table.dtype, factor);
  if (has_exponent(table)) {
    const int exponent = exponent_for_float16(largest_exponent(wide_.data(), count), 0);
    *to++ = exponent;
    scale(wide_.data(), wide_.data(), count, table.dtype, std::ldexp(1.0, exponent));
  }
  finish(to, wide_.data(), count, table.wire, Op::sum, 1);
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
    if (bytes > 0) unpack_values(tables_[t], from + count, outputs[t].values, bytes);
    outputs[t].indices += count;
    outputs[t].values += bytes;
    from += words_of(t, count);
  }
}

}  // namespace easyddl
