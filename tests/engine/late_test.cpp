// Ranks that enter a collective late, never, or enter another one. The job's deadlines must be one
// second (to warn) and two (to fail).
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/barrier.h"
#include "collectives/communicator.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

// Returns a communicator on which a collective may fail part-way. It is never destroyed, as in the
// extension, because all ranks must free a communicator together.
Communicator& lasting_communicator() {
  static std::vector<std::unique_ptr<Communicator>>& all =
      *new std::vector<std::unique_ptr<Communicator>>;
  all.push_back(std::make_unique<Communicator>(ranks::world()));
  return *all.back();
}

std::string error_of_barrier(Communicator& communicator, const std::string& what) {
  return trial::error_of([&] { barrier(communicator, Fingerprint(what)); });
}

}  // namespace

TEST(a_rank_that_is_late_is_waited_for) {
  Communicator communicator(ranks::world());
  ranks::world().stall_inspector().set_stack([] { return std::string("a line of its script"); });
  ranks::world().stall_inspector().set_activity(ranks::rank() == 0 ? "a long sleep" : "");
  if (ranks::rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2600));
  EXPECT_EQUAL(error_of_barrier(communicator, "an excused wait"), "");
  ranks::world().stall_inspector().set_activity("");
  for (int i = 0; i < 100; ++i) barrier(communicator, Fingerprint("what follows"));
}

TEST(a_rank_that_does_not_come_is_given_up) {
  Communicator& communicator = lasting_communicator();
  if (ranks::rank() != 0) {
    const std::string error = error_of_barrier(communicator, "a vain wait");
    EXPECT_CONTAINS(error, " s in a vain wait.\n  rank 0 on host ");
    EXPECT_CONTAINS(error, " has not entered it. Its script is at\n    a line of its script");
    EXPECT_CONTAINS(error, "EASYDDL_STALL_ABORT is 2 s");
    EXPECT_CONTAINS(error_of_barrier(communicator, "another"),
                    "this communicator cannot be used any more");
  }
  ranks::meet();
}

TEST(ranks_that_wait_in_two_collectives_get_an_error) {
  Communicator &one = lasting_communicator(), &other = lasting_communicator();
  std::string error;
  std::thread waiting([&] {
    error = error_of_barrier(ranks::rank() == 0 ? one : other,
                             ranks::rank() == 0 ? "one place" : "another place");
  });
  waiting.join();
  EXPECT_CONTAINS(error, ranks::rank() == 0 ? "another place" : "one place");
  EXPECT_CONTAINS(error,
                  "This is a deadlock: the ranks wait for each other in different collectives.");
  ranks::meet();
}

TEST(a_failure_is_known_to_all_who_wait) {
  Communicator& communicator = lasting_communicator();
  StallInspector& stall_inspector = ranks::world().stall_inspector();
  const size_t id = ranks::world().exit_protocol().add_communicator() - 1;
  EXPECT_EQUAL(stall_inspector.failure_of(id), "");
  if (ranks::rank() == 1) {
    stall_inspector.announce_failure(id, "no memory is left");
    stall_inspector.announce_failure(id, "a later one");
  } else {
    // The failure ends the wait long before any deadline.
    EXPECT_CONTAINS(error_of_barrier(communicator, "a vain wait"), "rank 1 on host ");
  }
  EXPECT_CONTAINS(stall_inspector.failure_of(id),
                  "A collective failed part-way on rank 1 on host ");
  EXPECT_CONTAINS(stall_inspector.failure_of(id), ": no memory is left");
  EXPECT_EQUAL(stall_inspector.failure_of(id + 1), "");
  ranks::meet();
}

TEST(ranks_that_fail_at_once_know_of_one_failure_each) {
  const size_t id = ranks::world().exit_protocol().add_communicator();
  StallInspector& stall_inspector = ranks::world().stall_inspector();
  ranks::meet();
  stall_inspector.announce_failure(id, std::string(5000, 'x'));
  // It is the failure of another rank where that was heard of first.
  const std::string failure = stall_inspector.failure_of(id);
  EXPECT_CONTAINS(failure, "A collective failed part-way on rank ");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  EXPECT_EQUAL(stall_inspector.failure_of(id), failure);
  ranks::meet();
}

TEST(communicators_are_not_limited) {
  ExitProtocol& exit_protocol = ranks::world().exit_protocol();
  const size_t first = exit_protocol.add_communicator();
  for (size_t i = 0; i < 5000; ++i) {
    const size_t communicator = exit_protocol.add_communicator();
    EXPECT_EQUAL(exit_protocol.begin(communicator), uint64_t{1});
    exit_protocol.end(communicator);
    EXPECT_EQUAL(exit_protocol.begun(communicator), uint64_t{1});
  }
  EXPECT_EQUAL(exit_protocol.begun(first), uint64_t{0});
  EXPECT_EQUAL(exit_protocol.begun(first + 5001), uint64_t{0});
}

// Never destroyed, because its thread answers the other ranks.
StallInspector& watch_with(Deadlines deadlines) {
  World& world = ranks::world();
  return *new StallInspector(world.comm(), world.topology(), world.exit_protocol(), deadlines);
}

// Returns the error that ends a wait in the next collective of communicator `id`; empty if there is
// none within `seconds`.
std::string error_of_wait(StallInspector& stall_inspector, ExitProtocol& exit_protocol, size_t id,
                          double seconds) {
  const auto since = std::chrono::steady_clock::now();
  const uint64_t number = exit_protocol.begin(id);
  const std::string error = trial::error_of([&] {
    while (std::chrono::steady_clock::now() - since < std::chrono::duration<double>(seconds)) {
      stall_inspector.check(id, number, "a wait in " + std::to_string(id), since, false);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  exit_protocol.end(id);
  stall_inspector.end_wait(id);
  return error;
}

TEST(a_rank_that_was_excused_is_asked_again) {
  StallInspector& stall_inspector = watch_with({0, 1});
  ExitProtocol& exit_protocol = ranks::world().exit_protocol();
  const size_t id = exit_protocol.add_communicator();
  stall_inspector.set_activity(ranks::rank() == 0 ? "a long sleep" : "");
  const auto since = std::chrono::steady_clock::now();
  if (ranks::rank() == 0) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1400));
    stall_inspector.set_activity("");
  } else {
    EXPECT_CONTAINS(error_of_wait(stall_inspector, exit_protocol, id, 8),
                    "EASYDDL_STALL_ABORT is 1 s");
    // The whole deadline began again when the rank was last excused.
    EXPECT(std::chrono::steady_clock::now() - since > std::chrono::milliseconds(1900));
  }
  ranks::meet();
  stall_inspector.stop();
}

TEST(two_threads_that_are_late_in_two_communicators_are_no_deadlock) {
  StallInspector& stall_inspector = watch_with({0.3, 30});
  ExitProtocol& exit_protocol = ranks::world().exit_protocol();
  const size_t first = exit_protocol.add_communicator(), second = exit_protocol.add_communicator();
  // Each rank waits in one communicator, while its thread for the other one is slow.
  const bool is_root = ranks::rank() == 0;
  EXPECT_EQUAL(error_of_wait(stall_inspector, exit_protocol, is_root ? first : second, 1.0), "");
  exit_protocol.begin(is_root ? second : first);
  exit_protocol.end(is_root ? second : first);
  ranks::meet();
  stall_inspector.stop();
}

TEST(a_rank_that_is_about_to_end_answers) {
  World& world = ranks::world();
  auto& exit_protocol = *new ExitProtocol(world.comm());
  auto& stall_inspector =
      *new StallInspector(world.comm(), world.topology(), exit_protocol, {0.5, 1});
  const size_t id = exit_protocol.add_communicator();
  if (ranks::rank() == 0) {
    exit_protocol.begin(id);
    exit_protocol.end(id);
  } else if (ranks::rank() == 1) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1600));
  } else {
    // Rank 0 has entered the collective and left since, so only rank 1 is missing.
    const std::string error = error_of_wait(stall_inspector, exit_protocol, id, 8);
    EXPECT_CONTAINS(error, "rank 1 on host b has not entered it");
    EXPECT(error.find("rank 0") == std::string::npos);
  }
  stall_inspector.stop();
  // All ranks have 7 and 9, at different places; rank 1 lacks 5; the others are of one rank.
  const uint64_t own = 100 + static_cast<uint64_t>(ranks::rank());
  std::vector<uint64_t> values{5, own, 7, 9};
  if (ranks::rank() == 1) values = {own, 9, 7};
  const std::vector<bool> are_common =
      exit_protocol.leave(values, [&] { stall_inspector.serve(); });
  EXPECT((are_common == std::vector<bool>{false, false, true, true}));
  ranks::meet();
}

TEST(no_thread_stays_in_a_collective_when_all_have_left) {
  World& world = ranks::world();
  auto& exit_protocol = *new ExitProtocol(world.comm());
  auto& stall_inspector =
      *new StallInspector(world.comm(), world.topology(), exit_protocol, {0, 0});
  const size_t id = exit_protocol.add_communicator();
  std::string error;
  const uint64_t number = exit_protocol.begin(id);
  std::thread waiting([&] {
    error = trial::error_of([&] {
      for (;;) {
        exit_protocol.check(id, number, "a thread's wait", world.topology());
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      }
    });
    exit_protocol.end(id);
  });
  stall_inspector.stop();
  exit_protocol.leave({}, [&] { stall_inspector.serve(); });
  EXPECT_CONTAINS(error, "All ranks have ended their scripts, while a thread of rank ");
  waiting.join();
  EXPECT_CONTAINS(trial::error_of([&] { exit_protocol.begin(id); }),
                  "easyddl has ended on this rank, because MPI_Finalize has been called");
  ranks::meet();
}

// The last test, because rank 0 ends its program.
TEST(a_rank_that_has_left_is_not_waited_for) {
  Communicator& communicator = lasting_communicator();
  barrier(communicator, Fingerprint("together"));
  if (ranks::rank() == 0) return;
  const std::string error = error_of_barrier(communicator, "alone");
  EXPECT_CONTAINS(error, "Rank 0 on host ");
  EXPECT_CONTAINS(error, " has ended its script, while rank ");
  EXPECT_CONTAINS(error, " waits for it in alone.");
}
