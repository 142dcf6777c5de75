// Gradients that several threads submit in any order.
#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arrays/half.h"
#include "collectives/allreduce.h"
#include "outcome.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

// The number of elements of each array of each bucket.
using Lengths = std::vector<std::vector<size_t>>;

std::vector<Bucket> buckets_of(const Lengths& counts) {
  std::vector<Bucket> buckets;
  for (const std::vector<size_t>& each : counts) {
    buckets.push_back({DType::float32, {}});
    for (size_t count : each) buckets.back().bytes.push_back(count * sizeof(float));
  }
  return buckets;
}

// The gradients of one optimizer, in buckets of float32 arrays. They differ by rank and step, and
// their mean is known.
class Gradients {
 public:
  explicit Gradients(Lengths counts) : counts_(std::move(counts)) {
    for (const std::vector<size_t>& bucket : counts_) {
      arrays_.emplace_back();
      for (size_t count : bucket) arrays_.back().emplace_back(count);
    }
  }

  size_t size() const { return counts_.size(); }
  std::vector<Bucket> buckets() const { return buckets_of(counts_); }

  void compute(size_t bucket, int step) {
    for (size_t a = 0; a < arrays_[bucket].size(); ++a) {
      std::vector<float>& array = arrays_[bucket][a];
      for (size_t i = 0; i < array.size(); ++i) {
        array[i] = base(bucket, a, step) + static_cast<float>(2 * ranks::rank());
      }
    }
  }

  // The results replace the gradients.
  std::vector<Segment> segments(size_t bucket) {
    std::vector<Segment> list;
    for (std::vector<float>& array : arrays_[bucket]) {
      auto* bytes = reinterpret_cast<uint8_t*>(array.data());
      list.push_back({bytes, bytes, array.size() * sizeof(float)});
    }
    return list;
  }

  void expect_means(int step) const {
    for (size_t bucket = 0; bucket < size(); ++bucket) {
      for (size_t a = 0; a < arrays_[bucket].size(); ++a) {
        const float mean = base(bucket, a, step) + static_cast<float>(ranks::size() - 1);
        for (float each : arrays_[bucket][a]) EXPECT_EQUAL(each, mean);
      }
    }
  }

 private:
  static float base(size_t bucket, size_t array, int step) {
    return static_cast<float>(bucket * 1000 + array * 10 + static_cast<size_t>(step));
  }

  Lengths counts_;
  std::vector<std::vector<std::vector<float>>> arrays_;
};

const Lengths kModel{{3, 0, 5}, {2053}, {1, 1, 1, 0}, {70001, 7}, {0}, {300007, 2}, {11}};

// Runs one step: several threads compute the buckets, in an order that differs by rank and step,
// and submit each bucket at once.
void take_step(Reducer& reducer, Gradients& gradients, int step, int num_threads) {
  std::vector<size_t> order(gradients.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(),
               std::mt19937(static_cast<unsigned>(1000 * ranks::rank() + step)));
  Outcome outcome;
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < num_threads; ++i) {
    threads.emplace_back([&] {
      for (size_t at = next++; at < order.size(); at = next++) {
        gradients.compute(order[at], step);
        reducer_entry_points().submit(reducer.number(), order[at], gradients.segments(order[at]), 1,
                                      outcome.done());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : outcome.wait(order.size())) EXPECT_EQUAL(error, "");
  gradients.expect_means(step);
}

}  // namespace

TEST(gradients_come_in_any_order_from_several_threads) {
  Gradients gradients(kModel);
  Reducer reducer(ranks::reducer_group(), "a model", gradients.buckets());
  const uint64_t before = reduced_steps();
  for (int step = 0; step < 100; ++step) take_step(reducer, gradients, step, 3);
  EXPECT_EQUAL(reduced_steps(), before + 100);
  reducer.close();
}

TEST(a_request_may_hold_several_buckets) {
  Gradients gradients(Lengths{{3}, {0}, {5, 5}, {9001}});
  Reducer reducer(ranks::reducer_group(), "a model", gradients.buckets());
  for (int step = 0; step < 10; ++step) {
    std::vector<Segment> first, second;
    for (size_t bucket = 0; bucket < gradients.size(); ++bucket) {
      gradients.compute(bucket, step);
      std::vector<Segment>& request = bucket < 2 ? first : second;
      for (const Segment& segment : gradients.segments(bucket)) request.push_back(segment);
    }
    Outcome outcome;
    reducer.submit(2, second, 1, outcome.done());
    reducer.submit(0, first, 1, outcome.done());
    for (const std::string& error : outcome.wait(2)) EXPECT_EQUAL(error, "");
    gradients.expect_means(step);
  }
}

TEST(steps_may_be_submitted_ahead) {
  std::vector<Gradients> steps(5, Gradients(Lengths{{3}, {70001}, {5}}));
  Reducer reducer(ranks::reducer_group(), "a model", steps[0].buckets());
  Outcome outcome;
  for (size_t bucket : {2, 0, 1}) {
    for (size_t step = 0; step < steps.size(); ++step) {
      steps[step].compute(bucket, static_cast<int>(step));
      reducer.submit(bucket, steps[step].segments(bucket), 1, outcome.done());
    }
  }
  for (const std::string& error : outcome.wait(15)) EXPECT_EQUAL(error, "");
  for (size_t step = 0; step < steps.size(); ++step) {
    steps[step].expect_means(static_cast<int>(step));
  }
}

TEST(two_reducers_and_collectives_run_at_once) {
  Communicator third(ranks::world());
  Gradients one(kModel), other(kModel);
  Reducer generator(ranks::reducer_group(), "a generator", one.buckets());
  Reducer discriminator(ranks::reducer_group(), "a discriminator", other.buckets());
  const auto train = [](Reducer& reducer, Gradients& gradients, std::string* failure) {
    try {
      for (int step = 0; step < 20; ++step) take_step(reducer, gradients, step, 2);
    } catch (const std::exception& error) {
      *failure = error.what();
    }
  };
  std::string failures[2];
  std::thread first([&] { train(generator, one, &failures[0]); });
  std::thread second([&] { train(discriminator, other, &failures[1]); });
  for (int i = 0; i < 50; ++i) {
    std::vector<int32_t> data(static_cast<size_t>(1 + i * 3001), 1 + ranks::rank());
    auto* bytes = reinterpret_cast<uint8_t*>(data.data());
    allreduce(third, SegmentList({{bytes, bytes, data.size() * sizeof(int32_t)}}), DType::int32,
              Op::max, Fingerprint("meanwhile " + std::to_string(i)));
    for (int32_t each : data) EXPECT_EQUAL(each, ranks::size());
  }
  first.join();
  second.join();
  EXPECT_EQUAL(failures[0] + failures[1], "");
}

TEST(a_reducer_is_closed_while_it_is_idle) {
  for (int i = 0; i < 20; ++i) {
    Gradients gradients(Lengths{{3}, {4}});
    Reducer reducer(ranks::reducer_group(), "a model", gradients.buckets());
    if (i % 2 == 0) take_step(reducer, gradients, i, 2);
    reducer.close();
    reducer.close();
    Outcome outcome;
    reducer_entry_points().submit(reducer.number(), 0, gradients.segments(0), 1, outcome.done());
    reducer.submit(0, gradients.segments(0), 1, outcome.done());
    const std::vector<std::string> errors = outcome.wait(2);
    EXPECT_CONTAINS(errors[0], "for a fit that has ended");
    EXPECT_CONTAINS(errors[1], "A model has been closed");
  }
}

// Bucket 0 is never submitted, so that no other bucket is reduced. The others are submitted before,
// during or after the close of the reducer, and `done` is called once for each.
TEST(requests_during_the_close_of_a_reducer_get_an_error) {
  for (int i = 0; i < 20; ++i) {
    Gradients gradients(Lengths{{1}, {3}, {4}});
    Reducer reducer(ranks::reducer_group(), "a model", gradients.buckets());
    Outcome outcome;
    std::vector<std::thread> threads;
    for (size_t bucket : {1, 2, 1}) {
      threads.emplace_back([&, bucket] {
        for (int k = 0; k < 50; ++k) {
          reducer_entry_points().submit(reducer.number(), bucket, gradients.segments(bucket), 1,
                                        outcome.done());
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::microseconds(20 * i));
    reducer.close();
    for (std::thread& thread : threads) thread.join();
    const std::vector<std::string> errors = outcome.wait(150);
    EXPECT_EQUAL(errors.size(), size_t{150});
    for (const std::string& error : errors) EXPECT(!error.empty());
  }
}

TEST(arrays_that_were_not_registered_are_refused) {
  const auto refusal = [](size_t first, std::vector<size_t> counts) {
    Gradients registered(Lengths{{3}, {4, 5}}), other(Lengths{std::move(counts)});
    Reducer reducer(ranks::reducer_group(), "a model", registered.buckets());
    Outcome outcome;
    reducer.submit(first, other.segments(0), 1, outcome.done());
    const std::string error = outcome.wait(1)[0];
    // After a failure no request can succeed.
    reducer.submit(0, registered.segments(0), 1, outcome.done());
    EXPECT_EQUAL(outcome.wait(2).size(), size_t{2});
    return error;
  };
  EXPECT_CONTAINS(refusal(0, {9}),
                  "Array 0 of bucket 0 of a model has 36 bytes, but 12 were registered.");
  EXPECT_CONTAINS(refusal(0, {3, 4}), "Too few arrays for bucket 1 of a model.");
  EXPECT_CONTAINS(refusal(2, {3}), "There is no bucket 2 in a model.");
}

TEST(ranks_whose_reducers_differ_get_an_error) {
  if (ranks::size() == 1) return;
  Gradients gradients(Lengths{{3}});
  const std::string what = ranks::rank() == 0 ? "one model" : "another";
  const std::string error =
      trial::error_of([&] { Reducer reducer(ranks::reducer_group(), what, gradients.buckets()); });
  EXPECT_CONTAINS(error, "Rank 0 called the creation of one model.");
  for (const std::string& theirs : ranks::gather(error)) EXPECT_EQUAL(theirs, error);
  Reducer same(ranks::reducer_group(), "a model", gradients.buckets());  // all agree again
  same.close();
}

namespace {

// Submits one step of one bucket, in which every element of this rank's gradient is `mine`.
std::vector<float> take(Reducer& reducer, float mine, double weight, size_t count) {
  std::vector<float> data(count, mine);
  auto* bytes = reinterpret_cast<uint8_t*>(data.data());
  Outcome outcome;
  reducer.submit(0, {{bytes, bytes, count * sizeof(float)}}, weight, outcome.done());
  EXPECT_EQUAL(outcome.wait(1)[0], "");
  return data;
}

void wait_for_all(Reducer& reducer) {
  while (!reducer.wait_for_all(std::chrono::milliseconds(50))) {
  }
}

// Returns the weighted mean over all ranks: the sum of weight * value divided by the sum of the
// weights.
template <class Weight, class Value>
double weighted_mean(Weight weight, Value value) {
  double total = 0, weights = 0;
  for (int rank = 0; rank < ranks::size(); ++rank) {
    total += weight(rank) * value(rank);
    weights += weight(rank);
  }
  return total / weights;
}

void expect_near(float actual, double expected) {
  EXPECT(std::abs(actual - expected) <= 1e-5 * std::max(1., std::abs(expected)));
}

}  // namespace

TEST(a_mean_is_weighted) {
  const size_t count = 2053;
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{count}}));
  const auto value = [](int rank) { return 1. + 3 * rank; };
  // Weights as of the last batches of epochs: equal, different, one of 0, and equal again.
  for (int step = 0; step < 8; ++step) {
    const auto weight = [&](int rank) {
      if (step % 4 == 1) return 4. + rank;
      if (step % 4 == 2) return rank == 0 ? 1. : 0.;
      return 32.;
    };
    const int me = ranks::rank();
    const auto result = take(reducer, static_cast<float>(value(me)), weight(me), count);
    for (float each : result) expect_near(each, weighted_mean(weight, value));
  }
}

TEST(gradients_of_no_weight_at_all_are_zero) {
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{3}}));
  for (int step = 0; step < 2; ++step) EXPECT_EQUAL(take(reducer, 5, 0, 3)[0], 0.f);
  expect_near(take(reducer, 5, 2, 3)[0], 5);
}

TEST(gradients_of_sums_are_averaged_as_they_are) {
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{3}}));
  const auto one = [](int) { return 1.; };
  const auto value = [](int rank) { return 2. * rank; };
  const float mine = static_cast<float>(2 * ranks::rank());
  for (int step = 0; step < 2; ++step) {
    expect_near(take(reducer, mine, kUnweighted, 3)[0], weighted_mean(one, value));
  }
}

TEST(half_precision_is_weighted_too) {
  Reducer reducer(ranks::reducer_group(), "a model",
                  {{DType::float16, {2 * 4}}, {DType::bfloat16, {2 * 4}}});
  const auto weight = [](int rank) { return rank + 1.; };
  const auto value = [](int rank) { return 1. + rank; };
  for (int step = 0; step < 3; ++step) {
    std::vector<Half> half(4, Half::from(1.f + static_cast<float>(ranks::rank())));
    std::vector<BFloat16> brain(4, BFloat16::from(1.f + static_cast<float>(ranks::rank())));
    auto* first = reinterpret_cast<uint8_t*>(half.data());
    auto* second = reinterpret_cast<uint8_t*>(brain.data());
    Outcome outcome;
    reducer.submit(0, {{first, first, 8}, {second, second, 8}}, ranks::rank() + 1., outcome.done());
    EXPECT_EQUAL(outcome.wait(1)[0], "");
    const double mean = weighted_mean(weight, value);
    EXPECT(std::abs(static_cast<float>(half[3]) - mean) <= 4e-3 * mean);
    EXPECT(std::abs(static_cast<float>(brain[3]) - mean) <= 3e-2 * mean);
  }
}

TEST(ranks_without_batches_join_until_all_have) {
  const int size = ranks::size(), me = ranks::rank();
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{3}, {9001}}));
  for (int epoch = 0; epoch < 3; ++epoch) {
    // Rank r has r batches in the first and last epochs. In the second epoch all ranks have the
    // same number.
    const int batches = epoch == 1 ? 2 : me;
    const auto has = [&](int rank, int step) { return (epoch == 1 ? 2 : rank) > step; };
    for (int step = 0; step < batches; ++step) {
      const float mine = static_cast<float>(10 * me + step);
      std::vector<float> small(3, mine), large(9001, mine);
      auto* first = reinterpret_cast<uint8_t*>(small.data());
      auto* second = reinterpret_cast<uint8_t*>(large.data());
      Outcome outcome;
      reducer.submit(1, {{second, second, large.size() * 4}}, 7, outcome.done());
      reducer.submit(0, {{first, first, small.size() * 4}}, 7, outcome.done());
      for (const std::string& error : outcome.wait(2)) EXPECT_EQUAL(error, "");
      double want = 0;
      int active = 0;
      for (int rank = 0; rank < size; ++rank) {
        if (!has(rank, step)) continue;
        want += 10 * rank + step;
        ++active;
      }
      want /= active;
      expect_near(small[2], want);
      expect_near(large[9000], want);
    }
    reducer.join();
    wait_for_all(reducer);
    const JoinSummary join_summary = reducer.join_summary();
    const int steps = epoch == 1 ? 2 : size - 1;
    EXPECT_EQUAL(join_summary.missed, static_cast<uint64_t>(steps - batches));
    EXPECT_EQUAL(join_summary.uneven > 0, epoch != 1 && size > 1);
    EXPECT_EQUAL(join_summary.stop, 0u);
    reducer.reset_join_state();
  }
  reducer.close();
}

TEST(all_learn_that_one_asks_to_stop) {
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{3}}));
  for (int asking = 0; asking < ranks::size(); ++asking) {
    take(reducer, 1, 1, 3);
    EXPECT_EQUAL(reducer.join_summary().stop, 0u);
    if (ranks::rank() == asking) reducer.ask_to_stop(true);
    // With a step, or with the end of all steps.
    if (asking % 2 == 0) {
      take(reducer, 1, 1, 3);
      EXPECT_EQUAL(reducer.join_summary().stop, 2u);
    }
    reducer.join();
    wait_for_all(reducer);
    EXPECT_EQUAL(reducer.join_summary().stop, 2u);
    reducer.reset_join_state();
  }
}

TEST(nobody_need_have_a_batch) {
  Reducer reducer(ranks::reducer_group(), "a model", buckets_of({{3}}));
  reducer.join();
  wait_for_all(reducer);
  EXPECT_EQUAL(reducer.join_summary().uneven, 0u);
  expect_near(take(reducer, 4, 1, 3)[0], 4);
}
