// Ranks that come late, not at all, or elsewhere. The job's deadlines must be a second (to
// warn) and two (to fail).
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "../../ext/channel.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

// Channels on which a collective fails half-way are kept until the process has ended, as the
// extension keeps all: to free a communicator takes all ranks.
Channel& lasting_channel() {
  static std::vector<std::unique_ptr<Channel>>& all = *new std::vector<std::unique_ptr<Channel>>;
  all.push_back(std::make_unique<Channel>(ranks::world()));
  return *all.back();
}

std::string error_of_barrier(Channel& channel, const std::string& what) {
  return trial::error_of([&] { channel.barrier(Signature(what)); });
}

}  // namespace

TEST(a_rank_that_is_late_is_waited_for) {
  Channel channel(ranks::world());
  ranks::world().stalls().set_stack([] { return std::string("a line of its script"); });
  ranks::world().stalls().set_activity(ranks::rank() == 0 ? "a long sleep" : "");
  if (ranks::rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2600));
  EXPECT_EQUAL(error_of_barrier(channel, "an excused wait"), "");
  ranks::world().stalls().set_activity("");
  for (int i = 0; i < 100; ++i) channel.barrier(Signature("what follows"));
}

TEST(a_rank_that_does_not_come_is_given_up) {
  Channel& channel = lasting_channel();
  if (ranks::rank() != 0) {
    const std::string error = error_of_barrier(channel, "a vain wait");
    EXPECT_CONTAINS(error, " s in a vain wait.\n  rank 0 on host ");
    EXPECT_CONTAINS(error, " has not come. Its script is at\n    a line of its script");
    EXPECT_CONTAINS(error, "EASYDDL_STALL_ABORT is 2 s");
    EXPECT_CONTAINS(error_of_barrier(channel, "another"), "no other can follow it");
  }
  ranks::meet();
}

TEST(ranks_that_wait_in_two_places_are_told) {
  Channel &one = lasting_channel(), &other = lasting_channel();
  std::string error;
  std::thread waiting([&] {
    error = error_of_barrier(ranks::rank() == 0 ? one : other,
                             ranks::rank() == 0 ? "one place" : "another place");
  });
  waiting.join();
  EXPECT_CONTAINS(error, ranks::rank() == 0 ? "another place" : "one place");
  EXPECT_CONTAINS(error, "The ranks have parted ways: none can go on.");
  ranks::meet();
}

// The last one: rank 0 goes on to the end of its program.
TEST(a_rank_that_has_left_is_not_waited_for) {
  Channel& channel = lasting_channel();
  channel.barrier(Signature("together"));
  if (ranks::rank() == 0) return;
  const std::string error = error_of_barrier(channel, "alone");
  EXPECT_CONTAINS(error, "Rank 0 on host ");
  EXPECT_CONTAINS(error, " has ended its script, while rank ");
  EXPECT_CONTAINS(error, " waits for it in alone.");
}
