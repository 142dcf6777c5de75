// What each way across hosts costs decides which is taken.
#include "algorithms/inter_host_algorithm.h"

#include <string>

#include "common/check.h"
#include "trial.h"

namespace {

using namespace easyddl;

constexpr size_t kKi = size_t{1} << 10, kMi = size_t{1} << 20;

bool is(Route route, size_t bytes, int members) { return cheapest_route(bytes, members) == route; }

}  // namespace

TEST(little_data_goes_whole) {
  for (int members : {2, 3, 8}) EXPECT(is(Route::whole, 64, members));
  EXPECT(is(Route::whole, 4 * kKi, 4));
}

TEST(two_hosts_need_one_round_for_any_size) {
  for (size_t bytes : {size_t{4}, kMi, 64 * kMi}) EXPECT(is(Route::whole, bytes, 2));
}

TEST(much_data_goes_straight_to_few_hosts) {
  for (int members : {3, 4, 8}) EXPECT(is(Route::direct, kMi, members));
}

TEST(data_among_many_hosts_never_meets_at_one) {
  EXPECT(is(Route::halving, 16 * kKi, 64));  // 12 messages instead of 63
  EXPECT(is(Route::halving, 16 * kMi, 16));
  EXPECT(is(Route::halving, 64 * kKi, 12));
  EXPECT(is(Route::ring, 16 * kMi, 12));  // halving would send all of it twice more
}

TEST(shards_cover_the_data) {
  for (int owners : {1, 2, 3, 5}) {
    for (size_t count : {0, 1, 4, 5, 1009}) {
      const Journey journey{MPI_COMM_NULL, 0, 5, owners, nullptr, count, DType::float32, Op::sum};
      size_t end = 0;
      for (int member = 0; member < journey.size; ++member) {
        const Journey::Shard shard = journey.shard(member);
        EXPECT_EQUAL(shard.begin, end);
        EXPECT(member < owners || shard.count == 0);
        EXPECT(shard.count <= count / static_cast<size_t>(owners) + 1);
        end += shard.count;
      }
      EXPECT_EQUAL(end, count);
    }
  }
}

TEST(an_unknown_route_is_refused) {
  EXPECT(route_named("ring") == Route::ring);
  std::string said;
  try {
    route_named("tree");
  } catch (const Error& error) {
    said = error.what();
  }
  EXPECT(said.find("EASYDDL_ROUTE must be one of whole, direct, halving and ring") == 0);
  EXPECT(said.find("'tree'") != std::string::npos);
}
