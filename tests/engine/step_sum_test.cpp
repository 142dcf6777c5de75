// Sums within steps. Many of them may be in progress at a time, in any order.
#include "reducer/step_sum.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "outcome.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

// 8 KiB take one phase on one host. A chunk has 256 KiB.
constexpr size_t kCounts[]{0, 1, 17, 2039, 2053, 65532, 65533, 200003};

float number_of(int rank, size_t i, int step) {
  return static_cast<float>(1 + (static_cast<size_t>(rank) * 7 + i * 3 + i / 64) % 11) +
         static_cast<float>(step);
}

// One array of this rank, and its sum.
class Term {
 public:
  Term(size_t count, int step, Outcome& outcome) : step_(step), data_(count), outcome_(outcome) {
    for (size_t i = 0; i < count; ++i) data_[i] = number_of(ranks::rank(), i, step);
  }

  void submit(StepSum& sum) {
    auto* bytes = reinterpret_cast<uint8_t*>(data_.data());
    reducer_entry_points().submit(sum.number(), 0, {{bytes, bytes, data_.size() * sizeof(float)}},
                                  1, outcome_.done());
  }

  // `has` says which ranks took part.
  template <class Has>
  void expect_sum(Has has) const {
    for (size_t i = 0; i < data_.size(); ++i) {
      float want = 0;
      for (int rank = 0; rank < ranks::size(); ++rank)
        want += has(rank) ? number_of(rank, i, step_) : 0;
      EXPECT_EQUAL(data_[i], want);
    }
  }

 private:
  int step_;
  std::vector<float> data_;
  Outcome& outcome_;
};

const auto kAll = [](int) { return true; };

void expect_no_errors(Outcome& outcome, size_t count) {
  for (const std::string& error : outcome.wait(count)) EXPECT_EQUAL(error, "");
}

void wait_for_all(StepSum& sum) {
  while (!sum.wait_for_all(std::chrono::milliseconds(50))) {
  }
}

}  // namespace

TEST(sums_of_any_size) {
  for (size_t count : kCounts) {
    StepSum sum(ranks::reducer_group(), "a sum", count);
    for (int step = 0; step < 20; ++step) {
      Outcome outcome;
      Term term(count, step, outcome);
      term.submit(sum);
      expect_no_errors(outcome, 1);
      term.expect_sum(kAll);
    }
  }
}

TEST(many_sums_in_an_order_that_differs_by_rank) {
  std::vector<std::unique_ptr<StepSum>> sums;
  for (size_t i = 0; i < 60; ++i) {
    sums.push_back(
        std::make_unique<StepSum>(ranks::reducer_group(), "sum " + std::to_string(i), i * i));
  }
  std::mt19937 random(static_cast<unsigned>(ranks::rank()));
  for (int step = 0; step < 20; ++step) {
    std::vector<size_t> order(sums.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), random);
    Outcome outcome;
    std::vector<Term> terms;
    for (size_t i = 0; i < sums.size(); ++i) terms.emplace_back(i * i, step, outcome);
    std::thread other([&] {
      for (size_t at = 0; at < order.size(); at += 2) terms[order[at]].submit(*sums[order[at]]);
    });
    for (size_t at = 1; at < order.size(); at += 2) terms[order[at]].submit(*sums[order[at]]);
    other.join();
    expect_no_errors(outcome, sums.size());
    for (const Term& term : terms) term.expect_sum(kAll);
  }
}

TEST(steps_of_a_sum_may_be_submitted_ahead) {
  StepSum sum(ranks::reducer_group(), "a sum", 9001);
  Outcome outcome;
  std::vector<Term> terms;
  for (int step = 0; step < 10; ++step) terms.emplace_back(9001, step, outcome);
  for (Term& term : terms) term.submit(sum);
  expect_no_errors(outcome, terms.size());
  for (const Term& term : terms) term.expect_sum(kAll);
}

TEST(ranks_without_batches_add_nothing_to_sums) {
  StepSum sum(ranks::reducer_group(), "a sum", 2053), other(ranks::reducer_group(), "another", 5);
  const int me = ranks::rank(), size = ranks::size();
  for (int epoch = 0; epoch < 4; ++epoch) {
    // Rank r has r batches.
    for (int step = 0; step < me; ++step) {
      Outcome outcome;
      Term one(2053, step, outcome), two(5, step, outcome);
      one.submit(sum);
      two.submit(other);
      expect_no_errors(outcome, 2);
      const auto has = [&](int rank) { return rank > step; };
      one.expect_sum(has);
      two.expect_sum(has);
    }
    if (me == 0) sum.ask_to_stop(epoch == 1);
    sum.join();
    other.join();
    wait_for_all(sum);
    wait_for_all(other);
    const JoinSummary join_summary = sum.join_summary();
    EXPECT_EQUAL(join_summary.missed, static_cast<uint64_t>(size - 1 - me));
    EXPECT_EQUAL(join_summary.uneven > 0, size > 1);
    EXPECT_EQUAL(join_summary.stop > 0, epoch == 1);
    sum.reset_join_state();
    other.reset_join_state();
  }
}

TEST(what_was_not_registered_is_refused) {
  StepSum sum(ranks::reducer_group(), "a sum", 3);
  Outcome outcome;
  Term wrong(4, 0, outcome), right(3, 0, outcome);
  wrong.submit(sum);
  EXPECT_CONTAINS(outcome.wait(1)[0],
                  "An array of 16 bytes was submitted to a sum, which needs 12 bytes.");
  right.submit(sum);
  EXPECT_EQUAL(outcome.wait(2)[1], "");
  right.expect_sum(kAll);
  sum.close();
  right.submit(sum);
  EXPECT_CONTAINS(outcome.wait(3)[2], "for a fit that has ended");
}

// Rank 1 may already have added its data to the sum in progress, which may then succeed. The next
// sum cannot.
TEST(a_sum_that_one_rank_closes_half_way_fails_on_all) {
  if (ranks::size() == 1) return;
  StepSum sum(ranks::reducer_group(), "a sum", 3);
  StepSum other(ranks::reducer_group(), "another", 3);
  Outcome outcome, sound;
  Term term(3, 0, outcome), next(3, 1, outcome), more(3, 2, sound);
  if (ranks::rank() != 0) term.submit(sum);
  ranks::meet();
  if (ranks::rank() == 1) sum.close();
  ranks::meet();
  if (ranks::rank() == 0) term.submit(sum);
  if (ranks::rank() != 1) {
    if (outcome.wait(1)[0].empty()) term.expect_sum(kAll);
    next.submit(sum);
    EXPECT_CONTAINS(outcome.wait(2)[1], "on rank 1 on host");
    EXPECT_CONTAINS(outcome.wait(2)[1], "was closed during a step");
  }
  more.submit(other);
  expect_no_errors(sound, 1);
  more.expect_sum(kAll);
}
