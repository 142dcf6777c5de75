// The reducers of a rank that has joined have a thread each. Their steps are in the order of the
// ranks that have not joined.
#include "gpu/step_order.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trial.h"

namespace {

using easyddl::GpuStepOrder;

const std::string kOne = "one model", kOther = "another";

double sum_of(uint64_t position, int ranks) {
  return static_cast<double>(GpuStepOrder::to_float(position)) * ranks;
}

}  // namespace

TEST(turns_of_a_rank_that_has_joined_come_in_their_order) {
  GpuStepOrder step_order;
  std::mutex mutex;
  std::vector<uint64_t> order;
  std::vector<std::thread> threads;
  constexpr uint64_t kTurns = 3000;  // more than a cycle
  constexpr int kReducers = 3;
  for (int reducer = 0; reducer < kReducers; ++reducer) {
    threads.emplace_back([&, reducer] {
      const GpuStepOrder::Owner owner{reducer + 1, kOne};
      for (auto position = static_cast<uint64_t>(reducer); position < kTurns;
           position += kReducers) {
        step_order.begin(owner, step_order.agreed(sum_of(position, 2), 2, nullptr));
        {
          const std::lock_guard<std::mutex> lock(mutex);
          order.push_back(position);
        }
        step_order.end(owner);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQUAL(order.size(), kTurns);
  for (uint64_t position = 0; position < kTurns; ++position)
    EXPECT_EQUAL(order[position], position);
}

TEST(a_turn_that_ranks_have_claimed_differently) {
  GpuStepOrder step_order;
  const GpuStepOrder::Owner owner{1, kOne};
  const uint64_t mine = step_order.claim(owner);
  const auto agree = [&](double sum) { step_order.agreed(sum, 2, &mine); };
  EXPECT_CONTAINS(trial::error_of([&] { agree(1); }), "in the same order");
  EXPECT_CONTAINS(trial::error_of([&] { agree(2); }), "in the same order");
  EXPECT_EQUAL(step_order.agreed(0, 2, &mine), mine);
  step_order.begin(owner, mine);
  step_order.end(owner);
  // This position has already ended on this rank.
  EXPECT_CONTAINS(trial::error_of([&] { step_order.agreed(0, 1, nullptr); }), "in the same order");
  EXPECT_CONTAINS(trial::error_of([&] { step_order.begin(owner, mine); }), "in the same order");
}

TEST(a_step_in_the_middle_of_another) {
  GpuStepOrder step_order;
  const GpuStepOrder::Owner one{1, kOne}, other{2, kOther};
  step_order.begin(one, step_order.claim(one));
  step_order.pause(one);
  const std::string text = trial::error_of([&] { step_order.claim(other); });
  EXPECT_CONTAINS(text, "A step of another begins while a step of one model is unfinished");
  step_order.resume(one);
  step_order.end(one);
  EXPECT_EQUAL(step_order.claim(other), 1u);
  step_order.end(other);  // which takes it back
  EXPECT_EQUAL(step_order.claim(one), 1u);
}
