// Ranks that come late, not at all, or elsewhere. The job's deadlines must be a second (to
// warn) and two (to fail).
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"
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

TEST(a_failure_is_known_to_all_who_wait) {
  Channel& channel = lasting_channel();
  StallWatch& stalls = ranks::world().stalls();
  const size_t line = ranks::world().farewell().add_channel() - 1;
  EXPECT_EQUAL(stalls.failure_of(line), "");
  if (ranks::rank() == 1) {
    stalls.announce_failure(line, "no memory is left");
    stalls.announce_failure(line, "a later one");
  } else {
    // It ends the wait long before any deadline.
    EXPECT_CONTAINS(error_of_barrier(channel, "a vain wait"), "rank 1 on host ");
  }
  EXPECT_CONTAINS(stalls.failure_of(line), "A collective failed half-way on rank 1 on host ");
  EXPECT_CONTAINS(stalls.failure_of(line), ": no memory is left");
  EXPECT_EQUAL(stalls.failure_of(line + 1), "");
  ranks::meet();
}

TEST(ranks_that_fail_at_once_know_of_one_failure_each) {
  const size_t line = ranks::world().farewell().add_channel();
  StallWatch& stalls = ranks::world().stalls();
  ranks::meet();
  stalls.announce_failure(line, std::string(5000, 'x'));
  const std::string failure = stalls.failure_of(line);
  EXPECT_CONTAINS(failure, "rank " + std::to_string(ranks::rank()));
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQUAL(stalls.failure_of(line), failure);
  ranks::meet();
}

TEST(channels_are_not_limited) {
  Farewell& farewell = ranks::world().farewell();
  const size_t first = farewell.add_channel();
  for (size_t i = 0; i < 5000; ++i) {
    const size_t channel = farewell.add_channel();
    EXPECT_EQUAL(farewell.begin(channel), uint64_t{1});
    farewell.end(channel);
    EXPECT_EQUAL(farewell.begun(channel), uint64_t{1});
  }
  EXPECT_EQUAL(farewell.begun(first), uint64_t{0});
  EXPECT_EQUAL(farewell.begun(first + 5001), uint64_t{0});
}

// Never destroyed: its thread serves the other ranks' inquiries.
StallWatch& watch_with(Deadlines deadlines) {
  World& world = ranks::world();
  return *new StallWatch(world.comm(), world.layout(), world.farewell(), deadlines);
}

// What ends a wait in the next collective of `line`; empty if nothing does within so many seconds.
std::string error_of_wait(StallWatch& stalls, Farewell& farewell, size_t line, double seconds) {
  const auto since = std::chrono::steady_clock::now();
  const uint64_t number = farewell.begin(line);
  const std::string error = trial::error_of([&] {
    while (std::chrono::steady_clock::now() - since < std::chrono::duration<double>(seconds)) {
      stalls.check(line, number, "a wait in " + std::to_string(line), since, false);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  farewell.end(line);
  stalls.forget(line);
  return error;
}

TEST(a_rank_that_was_excused_is_asked_again) {
  StallWatch& stalls = watch_with({0, 1});
  Farewell& farewell = ranks::world().farewell();
  const size_t line = farewell.add_channel();
  stalls.set_activity(ranks::rank() == 0 ? "a long sleep" : "");
  const auto since = std::chrono::steady_clock::now();
  if (ranks::rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    stalls.set_activity("");
  } else {
    EXPECT_CONTAINS(error_of_wait(stalls, farewell, line, 8), "EASYDDL_STALL_ABORT is 1 s");
    // It had the whole deadline again from when it was last excused.
    EXPECT(std::chrono::steady_clock::now() - since > std::chrono::milliseconds(1900));
  }
  ranks::meet();
  stalls.stop();
}

TEST(two_threads_that_are_late_in_two_channels_are_no_deadlock) {
  StallWatch& stalls = watch_with({0.3, 30});
  Farewell& farewell = ranks::world().farewell();
  const size_t first = farewell.add_channel(), second = farewell.add_channel();
  // Each rank waits in one channel, while its thread for the other one is slow.
  const bool is_root = ranks::rank() == 0;
  EXPECT_EQUAL(error_of_wait(stalls, farewell, is_root ? first : second, 1.0), "");
  farewell.begin(is_root ? second : first);
  farewell.end(is_root ? second : first);
  ranks::meet();
  stalls.stop();
}

TEST(a_rank_that_is_about_to_end_answers) {
  World& world = ranks::world();
  auto& farewell = *new Farewell(world.comm());
  auto& stalls = *new StallWatch(world.comm(), world.layout(), farewell, {0.5, 1});
  const size_t line = farewell.add_channel();
  if (ranks::rank() == 0) {
    farewell.begin(line);
    farewell.end(line);
  } else if (ranks::rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
  } else {
    // Rank 0 has come, and has left since: only rank 1 is missing.
    const std::string error = error_of_wait(stalls, farewell, line, 8);
    EXPECT_CONTAINS(error, "rank 1 on host b has not come");
    EXPECT(error.find("rank 0") == std::string::npos);
  }
  EXPECT(!farewell.leave(ranks::rank() != 1));
  stalls.stop();
  ranks::meet();
}

TEST(no_thread_stays_in_a_collective_when_all_have_left) {
  World& world = ranks::world();
  auto& farewell = *new Farewell(world.comm());
  auto& stalls = *new StallWatch(world.comm(), world.layout(), farewell, {0, 0});
  const size_t line = farewell.add_channel();
  std::string error;
  const uint64_t number = farewell.begin(line);
  std::thread waiting([&] {
    error = trial::error_of([&] {
      for (;;) {
        farewell.check(line, number, "a thread's wait", world.layout());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    farewell.end(line);
  });
  EXPECT(farewell.leave(true));
  EXPECT_CONTAINS(error, "All ranks have ended their scripts, while a thread of rank ");
  waiting.join();
  EXPECT_CONTAINS(trial::error_of([&] { farewell.begin(line); }),
                  "easyddl has ended on this rank, because MPI_Finalize has been called");
  stalls.stop();
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
