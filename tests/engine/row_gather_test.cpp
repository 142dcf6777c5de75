// Rows of sparse gradients, after the buckets of a reducer, and in a reducer without buckets.
#include "collectives/row_gather.h"

#include <malloc.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "outcome.h"
#include "ranks.h"
#include "reducer/reducer.h"
#include "trial.h"

namespace {

using namespace easyddl;

const std::vector<Table> kTables{{"words", DType::float64, 1000, 2 * sizeof(double)},
                                 {"letters", DType::float32, 30, sizeof(float)}};

// The number of rows differs by rank and step, and is sometimes 0.
size_t count_of(int rank, int step) { return static_cast<size_t>((7 * rank + 3 * step) % 5); }
int64_t index_of(int rank, size_t i) { return (11 * rank + static_cast<int64_t>(i)) % 30; }
double value_of(int rank, size_t i) { return 4. * rank + static_cast<double>(i); }

void expect_near(double actual, double expected, double relative) {
  EXPECT(std::abs(actual - expected) <= relative * std::abs(expected));
}

// One rank's rows of both tables, and the memory for the rows of all ranks.
struct Step {
  explicit Step(int rank, int step) {
    for (size_t i = 0; i < count_of(rank, step); ++i) {
      indices.push_back(index_of(rank, i));
      letters.push_back(static_cast<float>(value_of(rank, i)));
      for (int k = 0; k < 2; ++k) words.push_back(value_of(rank, i) + k);
    }
  }

  std::vector<Rows> rows() const {
    const size_t count = indices.size();
    const auto bytes = [](const auto& list) {
      return reinterpret_cast<const uint8_t*>(list.data());
    };
    return {{indices.data(), count, bytes(words), count * 2 * sizeof(double)},
            {indices.data(), count, bytes(letters), count * sizeof(float)}};
  }

  AllocateRows room() {
    return [this](const std::vector<size_t>& counts) -> std::vector<RowOutput> {
      for (std::vector<int64_t>& each : all_indices) each.resize(counts[0]);
      all_words.resize(2 * counts[0]);
      all_letters.resize(counts[1]);
      return {{all_indices[0].data(), reinterpret_cast<uint8_t*>(all_words.data())},
              {all_indices[1].data(), reinterpret_cast<uint8_t*>(all_letters.data())}};
    };
  }

  // `share` is the factor by which each rank's values have been multiplied.
  template <class Share>
  void expect_all(int step, Share share) const {
    size_t at = 0;
    for (int rank = 0; rank < ranks::size(); ++rank) {
      for (size_t i = 0; share(rank) >= 0 && i < count_of(rank, step); ++i, ++at) {
        EXPECT_EQUAL(all_indices[0][at], index_of(rank, i));
        EXPECT_EQUAL(all_indices[1][at], index_of(rank, i));
        expect_near(all_words[2 * at + 1], (value_of(rank, i) + 1) * share(rank), 1e-15);
        expect_near(all_letters[at], value_of(rank, i) * share(rank), 1e-7);
      }
    }
    EXPECT_EQUAL(all_letters.size(), at);
  }

  std::vector<int64_t> indices;
  std::vector<double> words;
  std::vector<float> letters;
  std::vector<int64_t> all_indices[2];
  std::vector<double> all_words;
  std::vector<float> all_letters;
};

std::string submit_rows(Reducer& reducer, const std::vector<Rows>& rows, double weight,
                        const AllocateRows& room) {
  Outcome outcome;
  reducer_entry_points().submit_rows(reducer.number(), rows, weight, room, outcome.done());
  return outcome.wait(1)[0];
}

}  // namespace

TEST(rows_of_all_ranks_come_in_their_order) {
  for (bool behind_a_bucket : {false, true}) {
    std::vector<Bucket> buckets;
    if (behind_a_bucket) buckets.push_back({DType::float64, {3 * sizeof(double)}});
    Reducer reducer(ranks::reducer_group(), "a model", buckets, kTables);
    for (int step = 0; step < 20; ++step) {
      Step mine(ranks::rank(), step);
      std::vector<double> dense(3, 1);
      auto* bytes = reinterpret_cast<uint8_t*>(dense.data());
      Outcome outcome;
      if (behind_a_bucket) {
        reducer.submit(0, {{bytes, bytes, 3 * sizeof(double)}}, 4, outcome.done());
      }
      EXPECT_EQUAL(submit_rows(reducer, mine.rows(), 4, mine.room()), "");
      if (behind_a_bucket) EXPECT_EQUAL(outcome.wait(1)[0], "");
      mine.expect_all(step, [](int) { return 1. / ranks::size(); });
    }
    EXPECT_EQUAL(reducer.gathered().first, uint64_t{20});
  }
}

TEST(a_rank_that_has_joined_has_no_rows) {
  Reducer reducer(ranks::reducer_group(), "a model", {}, kTables);
  for (int step = 0; step < ranks::size(); ++step) {
    if (step > ranks::rank()) break;  // rank 0 takes one step, and each other one more
    Step mine(ranks::rank(), step);
    EXPECT_EQUAL(submit_rows(reducer, mine.rows(), 1, mine.room()), "");
    mine.expect_all(step, [&](int rank) { return rank < step ? -1 : 1. / (ranks::size() - step); });
  }
  reducer.join();
  while (!reducer.wait_for_all(std::chrono::milliseconds(50))) {
  }
  EXPECT_EQUAL(reducer.join_summary().missed,
               static_cast<uint64_t>(ranks::size() - 1 - ranks::rank()));
}

TEST(rows_that_are_no_rows_of_their_table_fail_on_all_ranks) {
  const int last = ranks::size() - 1;
  const int64_t outside = 1000;
  const double values[2]{};
  const auto* bytes = reinterpret_cast<const uint8_t*>(values);
  const auto error_of = [&](std::vector<Rows> bad) {
    Reducer reducer(ranks::reducer_group(), "a model", {}, kTables);
    Step mine(ranks::rank(), 1);
    const bool is_bad = ranks::rank() == last;
    const std::string error = submit_rows(reducer, is_bad ? bad : mine.rows(), 1, mine.room());
    for (const std::string& theirs : ranks::gather(error)) EXPECT(!theirs.empty());
    reducer.close();
    return ranks::gather(error)[static_cast<size_t>(last)];
  };
  EXPECT_CONTAINS(
      error_of({{&outside, 1, bytes, 16}, {}}),
      "The sparse gradient of words has the index 1000, but its variable has only 1000 rows.");
  EXPECT_CONTAINS(error_of({{&outside, 1, bytes, 8}, {}}), "values of 8 bytes");
  EXPECT_CONTAINS(error_of({{}}), "Rows of 1 sparse gradients were submitted, but 2");
}

#if __GLIBC_PREREQ(2, 33)
TEST(a_closed_reducer_keeps_no_memory_for_rows) {
  const size_t count = size_t{1} << 18, all = count * static_cast<size_t>(ranks::size());
  const std::vector<int64_t> indices(count);
  const std::vector<float> values(count);
  std::vector<int64_t> all_indices(all);
  std::vector<float> all_values(all);
  const Rows mine{indices.data(), count, reinterpret_cast<const uint8_t*>(values.data()),
                  count * sizeof(float)};
  const AllocateRows room = [&](const std::vector<size_t>&) -> std::vector<RowOutput> {
    return {{all_indices.data(), reinterpret_cast<uint8_t*>(all_values.data())}};
  };
  std::vector<std::unique_ptr<Reducer>> closed;  // but not destroyed, as in Python
  const auto allocated_after_one = [&] {
    const std::vector<Table> tables{{"letters", DType::float32, count, sizeof(float)}};
    Reducer& reducer = *closed.emplace_back(std::make_unique<Reducer>(
        ranks::reducer_group(), "a model", std::vector<Bucket>(), tables));
    EXPECT_EQUAL(submit_rows(reducer, {mine}, 1, room), "");
    reducer.close();
    return mallinfo2().uordblks + mallinfo2().hblkhd;
  };
  allocated_after_one();  // MPI allocates memory for its first messages
  const size_t before = allocated_after_one();
  EXPECT(allocated_after_one() < before + mine.bytes);
}
#endif
