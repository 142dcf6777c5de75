// The choice of the algorithm across hosts, by its cost.
#include "algorithms/inter_host_algorithm.h"

#include "trial.h"

namespace {

using namespace easyddl;

constexpr size_t kKi = size_t{1} << 10, kMi = size_t{1} << 20;

bool is(InterHostAlgorithm algorithm, size_t bytes, int members) {
  return cheapest_inter_host_algorithm(bytes, members) == algorithm;
}

// Returns whether an algorithm takes the place of the cheapest one in a level that needs shards.
bool is_with_shards(InterHostAlgorithm algorithm, size_t bytes, int members, int owners) {
  const InterHostOperation operation{MPI_COMM_NULL, 0,         members,        owners,
                                     nullptr,       bytes / 4, DType::float32, Op::sum};
  return algorithm_with_shards(cheapest_inter_host_algorithm(bytes, members), operation) ==
         algorithm;
}

}  // namespace

TEST(little_data_goes_whole) {
  for (int members : {2, 3, 8}) EXPECT(is(InterHostAlgorithm::whole, 64, members));
  EXPECT(is(InterHostAlgorithm::whole, 4 * kKi, 4));
}

TEST(two_hosts_need_one_round_for_any_size) {
  for (size_t bytes : {size_t{4}, kMi, 64 * kMi}) EXPECT(is(InterHostAlgorithm::whole, bytes, 2));
}

TEST(data_goes_straight_to_few_hosts) {
  for (int members : {3, 4, 5, 6, 7, 8}) EXPECT(is(InterHostAlgorithm::direct, 64 * kKi, members));
}

TEST(much_data_goes_from_one_host_to_the_next) {
  for (int members : {3, 5, 6, 7}) EXPECT(is(InterHostAlgorithm::ring, kMi, members));
  for (int members : {4, 8}) EXPECT(is(InterHostAlgorithm::halving, kMi, members));
}

TEST(data_among_many_hosts_never_meets_at_one) {
  EXPECT(is(InterHostAlgorithm::halving, 16 * kKi, 64));  // 12 messages instead of 63
  EXPECT(is(InterHostAlgorithm::halving, 16 * kMi, 16));
  EXPECT(is(InterHostAlgorithm::halving, 64 * kKi, 12));
  EXPECT(is(InterHostAlgorithm::ring, 16 * kMi, 12));  // halving would send all of it twice more
}

TEST(a_level_that_needs_shards_has_an_algorithm_that_leaves_them) {
  for (int members : {2, 3, 8})
    EXPECT(is_with_shards(InterHostAlgorithm::direct, 64, members, members));
  EXPECT(is_with_shards(InterHostAlgorithm::halving, 16 * kMi, 16, 16));
  EXPECT(is_with_shards(InterHostAlgorithm::ring, 16 * kMi, 16, 12));
  EXPECT(is_with_shards(InterHostAlgorithm::ring, 16 * kMi, 12, 12));
}

TEST(shards_of_many_hosts_meet_at_one_only_if_they_are_small) {
  EXPECT(is_with_shards(InterHostAlgorithm::direct, 64, 12, 12));
  EXPECT(is_with_shards(InterHostAlgorithm::direct, 64 * kKi, 12, 12));
  EXPECT(is_with_shards(InterHostAlgorithm::ring, 160 * kKi, 12, 12));
  EXPECT(is_with_shards(InterHostAlgorithm::ring, 512 * kKi, 24, 24));
  EXPECT(is_with_shards(InterHostAlgorithm::ring, 64 * kKi, 12, 6));  // larger shards
}

TEST(shards_cover_the_data) {
  for (int owners : {1, 2, 3, 5}) {
    for (size_t count : {0, 1, 4, 5, 1009}) {
      const InterHostOperation operation{MPI_COMM_NULL,  0,      5, owners, nullptr, count,
                                         DType::float32, Op::sum};
      size_t end = 0;
      for (int member = 0; member < operation.size; ++member) {
        const InterHostOperation::Shard shard = operation.shard(member);
        EXPECT_EQUAL(shard.begin, end);
        EXPECT(member < owners || shard.count == 0);
        EXPECT(shard.count <= count / static_cast<size_t>(owners) + 1);
        end += shard.count;
      }
      EXPECT_EQUAL(end, count);
    }
  }
}
