// Ranks that call different collectives. All of them get the same error, and can continue.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "collectives/all_gather.h"
#include "collectives/allreduce.h"
#include "collectives/barrier.h"
#include "collectives/communicator.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

void allreduce(Communicator& communicator, size_t count) {
  std::vector<float> data(count, 1.0f);
  auto* bytes = reinterpret_cast<uint8_t*>(data.data());
  easyddl::allreduce(communicator, SegmentList({{bytes, bytes, count * sizeof(float)}}),
                     DType::float32, Op::sum, Fingerprint("allreduce of " + std::to_string(count)));
  EXPECT(std::all_of(data.begin(), data.end(),
                     [](float each) { return each == static_cast<float>(ranks::size()); }));
}

void expect_one_error(const std::string& error, const std::string& one, const std::string& other) {
  for (const std::string& theirs : ranks::gather(error)) EXPECT_EQUAL(theirs, error);
  EXPECT_CONTAINS(error, "The ranks disagree about a collective");
  EXPECT_CONTAINS(error, "called " + one + ".");
  EXPECT_CONTAINS(error, "called " + other + ".");
}

// The last rank calls one collective, and the others call another one. Then all call the same.
template <class One, class Other>
void check_disagreement(One last_one, Other others, const std::string& one,
                        const std::string& other) {
  if (ranks::size() == 1) return;
  Communicator communicator(ranks::world());
  for (int round = 0; round < 3; ++round) {
    const std::string error = trial::error_of([&] {
      ranks::rank() == ranks::size() - 1 ? last_one(communicator) : others(communicator);
    });
    expect_one_error(error, one, other);
    for (size_t count : {1, 2053, 600011}) allreduce(communicator, count);
  }
}

}  // namespace

TEST(ranks_that_disagree_about_a_small_array_go_on) {
  check_disagreement([](Communicator& communicator) { allreduce(communicator, 3); },
                     [](Communicator& communicator) { allreduce(communicator, 4); },
                     "allreduce of 3", "allreduce of 4");
}

TEST(ranks_that_disagree_about_a_large_array_go_on) {
  check_disagreement([](Communicator& communicator) { allreduce(communicator, 1200007); },
                     [](Communicator& communicator) { allreduce(communicator, 70001); },
                     "allreduce of 1200007", "allreduce of 70001");
}

TEST(ranks_of_which_one_has_a_small_array_and_one_a_large_go_on) {
  check_disagreement([](Communicator& communicator) { allreduce(communicator, 1200007); },
                     [](Communicator& communicator) { allreduce(communicator, 1); },
                     "allreduce of 1200007", "allreduce of 1");
}

TEST(ranks_that_call_different_collectives_go_on) {
  check_disagreement(
      [](Communicator& communicator) { barrier(communicator, Fingerprint("barrier")); },
      [](Communicator& communicator) { allreduce(communicator, 100003); }, "barrier",
      "allreduce of 100003");
  check_disagreement(
      [](Communicator& communicator) { gather_values(communicator, 1, Fingerprint("gather")); },
      [](Communicator& communicator) { barrier(communicator, Fingerprint("barrier")); }, "gather",
      "barrier");
}

TEST(each_rank_may_ask_for_something_else) {
  if (ranks::size() == 1) return;
  Communicator communicator(ranks::world());
  const std::string error =
      trial::error_of([&] { allreduce(communicator, static_cast<size_t>(1 + ranks::rank())); });
  expect_one_error(error, "allreduce of 1", "allreduce of 2");
  allreduce(communicator, 17);
}
