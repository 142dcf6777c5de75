// Exchanges, each with a thread where a rank has joined, take their turns in the order of the ranks
// that have not.
#include "gpu/step_order.h"

#include <cstdint>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "trial.h"

namespace {

using easyddl::GpuTurns;

const std::string kOne = "one model", kOther = "another";

double sum_of(uint64_t turn, int ranks) {
  return static_cast<double>(GpuTurns::to_float(turn)) * ranks;
}

}  // namespace

TEST(turns_of_a_rank_that_has_joined_come_in_their_order) {
  GpuTurns turns;
  std::mutex mutex;
  std::vector<uint64_t> order;
  std::vector<std::thread> threads;
  constexpr uint64_t kTurns = 3000;  // more than a cycle
  constexpr int kExchanges = 3;
  for (int exchange = 0; exchange < kExchanges; ++exchange) {
    threads.emplace_back([&, exchange] {
      const GpuTurns::Owner owner{exchange + 1, kOne};
      for (auto turn = static_cast<uint64_t>(exchange); turn < kTurns; turn += kExchanges) {
        turns.begin(owner, turns.agreed(sum_of(turn, 2), 2, nullptr));
        {
          const std::lock_guard<std::mutex> lock(mutex);
          order.push_back(turn);
        }
        turns.end(owner);
      }
    });
  }
  for (std::thread& each : threads) each.join();
  EXPECT_EQUAL(order.size(), kTurns);
  for (uint64_t turn = 0; turn < kTurns; ++turn) EXPECT_EQUAL(order[turn], turn);
}

TEST(a_turn_that_ranks_have_claimed_differently) {
  GpuTurns turns;
  const GpuTurns::Owner owner{1, kOne};
  const uint64_t mine = turns.claim(owner);
  const auto agree = [&](double sum) { turns.agreed(sum, 2, &mine); };
  EXPECT_CONTAINS(trial::error_of([&] { agree(1); }), "in one order");
  EXPECT_CONTAINS(trial::error_of([&] { agree(2); }), "in one order");
  EXPECT_EQUAL(turns.agreed(0, 2, &mine), mine);
  turns.begin(owner, mine);
  turns.end(owner);
  // It has gone by here.
  EXPECT_CONTAINS(trial::error_of([&] { turns.agreed(0, 1, nullptr); }), "in one order");
  EXPECT_CONTAINS(trial::error_of([&] { turns.begin(owner, mine); }), "in one order");
}

TEST(a_step_in_the_middle_of_another) {
  GpuTurns turns;
  const GpuTurns::Owner one{1, kOne}, other{2, kOther};
  turns.begin(one, turns.claim(one));
  turns.pause(one);
  const std::string text = trial::error_of([&] { turns.claim(other); });
  EXPECT_CONTAINS(text, "A step of another begins while a step of one model is half-way");
  turns.resume(one);
  turns.end(one);
  EXPECT_EQUAL(turns.claim(other), 1u);
  turns.end(other);  // which takes it back
  EXPECT_EQUAL(turns.claim(one), 1u);
}
