// Threads and processes that wait for each other by a FutexCounter.
#include "common/futex_counter.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/wait.h"
#include "trial.h"

namespace {

using easyddl::FutexCounter;

constexpr uint32_t kMembers = 3;
constexpr uint32_t kSlots = 4;

void nothing() {}

// The state of a level within a host: a counter, and slots that are written in rotation. As there,
// zeroed memory is a counter in its initial state. Other initial values test that the counter may
// begin anywhere.
struct LevelState {
  FutexCounter counter;
  uint32_t slots[kSlots][kMembers];
};

LevelState* board_at(void* memory, uint32_t first) {
  std::memset(memory, 0, sizeof(LevelState));
  std::memcpy(memory, &first, sizeof first);
  return static_cast<LevelState*>(memory);
}

// In phase t each member writes its slot, waits until all members have ended phase t - 1, and reads
// what they wrote in that phase. The slots are plain memory, so only the counter synchronizes the
// members.
bool play(LevelState& level_state, uint32_t first, uint32_t member, uint32_t phases,
          bool cores_are_shared) {
  for (uint32_t phase = 1; phase <= phases; ++phase) {
    level_state.slots[phase % kSlots][member] = phase * kMembers + member;
    level_state.counter.wait(first + (phase - 1) * kMembers, cores_are_shared, nothing);
    for (uint32_t other = 0; phase > 1 && other < kMembers; ++other) {
      if (level_state.slots[(phase - 1) % kSlots][other] != (phase - 1) * kMembers + other)
        return false;
    }
    level_state.counter.advance(first + phase * kMembers);
  }
  return true;
}

void play_with_threads(uint32_t first, bool cores_are_shared) {
  alignas(LevelState) unsigned char memory[sizeof(LevelState)];
  LevelState* const level_state = board_at(memory, first);
  std::atomic<int> wins{0};
  std::vector<std::thread> members;
  for (uint32_t member = 0; member < kMembers; ++member) {
    members.emplace_back(
        [&, member] { wins += play(*level_state, first, member, 2000, cores_are_shared); });
  }
  for (std::thread& member : members) member.join();
  EXPECT_EQUAL(wins.load(), static_cast<int>(kMembers));
}

void play_with_processes(uint32_t first, bool cores_are_shared) {
  void* const memory =
      mmap(nullptr, sizeof(LevelState), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT(memory != MAP_FAILED);
  LevelState* const level_state = board_at(memory, first);
  std::vector<pid_t> children;
  for (uint32_t member = 1; member < kMembers; ++member) {
    const pid_t child = fork();
    if (child == 0) _exit(play(*level_state, first, member, 2000, cores_are_shared) ? 0 : 1);
    EXPECT(child > 0);
    children.push_back(child);
  }
  const bool won = play(*level_state, first, 0, 2000, cores_are_shared);
  for (pid_t child : children) {
    int status = -1;
    EXPECT_EQUAL(waitpid(child, &status, 0), child);
    EXPECT_EQUAL(status, 0);
  }
  munmap(memory, sizeof(LevelState));
  EXPECT(won);
}

// Begins so that the counter wraps around during the test.
constexpr uint32_t kNearTheEnd = 0u - 1000 * kMembers - 1;

}  // namespace

TEST(threads_meet) {
  play_with_threads(0, true);
  play_with_threads(0, false);
}

TEST(threads_meet_while_the_counter_wraps_around) {
  play_with_threads(kNearTheEnd, true);
  play_with_threads(kNearTheEnd, false);
}

TEST(processes_meet) {
  play_with_processes(0, true);
  play_with_processes(0, false);
}

TEST(processes_meet_while_the_counter_wraps_around) {
  play_with_processes(kNearTheEnd, true);
  play_with_processes(kNearTheEnd, false);
}

TEST(a_sleeper_is_woken_across_the_end_of_the_counter) {
  alignas(LevelState) unsigned char memory[sizeof(LevelState)];
  const uint32_t first = 0u - 1;
  FutexCounter& counter = board_at(memory, first)->counter;
  int idled = 0;
  std::chrono::steady_clock::time_point woken;
  std::thread sleeper([&] {
    counter.wait(first + 2, true, [&] { ++idled; });
    woken = std::chrono::steady_clock::now();
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  counter.advance(first + 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  const auto advanced = std::chrono::steady_clock::now();
  counter.advance(first + 2);
  sleeper.join();
  EXPECT(idled >= 2);
  EXPECT(woken >= advanced);
}

TEST(a_wait_that_is_given_up_leaves_the_counter_usable) {
  alignas(LevelState) unsigned char memory[sizeof(LevelState)];
  FutexCounter& counter = board_at(memory, 0)->counter;
  bool given_up = false;
  try {
    counter.wait(1, false, [] { throw std::runtime_error("enough"); });
  } catch (const std::runtime_error&) {
    given_up = true;
  }
  EXPECT(given_up);
  std::thread other([&] { counter.advance(1); });
  counter.wait(1, false, nothing);
  other.join();
}
