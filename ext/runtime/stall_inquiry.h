// The questions of a rank that has waited for long, and the answers of the other ranks.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exit_protocol.h"
#include "runtime/topology.h"

namespace easyddl {

// Small enough for MPI to send it at once, because a rank that answers must not wait for the rank
// that asks. Only the used part of the text is sent.
struct StallMessage {
  enum class Kind : uint32_t { question, answer, stack, failure };

  Kind kind;
  uint32_t has_entered;  // whether it has entered the collective in question
  uint64_t communicator, number;
  uint32_t is_waiting;  // whether it waits in another collective, which the next members describe
  uint64_t wait_communicator, wait_number;
  double wait_seconds;
  std::array<char, 512> wait_what;
  std::array<char, 256> activity;
  std::array<char, 2400> text;  // the script's stack, or why the communicator failed

  int bytes() const {
    return static_cast<int>(offsetof(StallMessage, text) + std::strlen(text.data()) + 1);
  }
};

// One question of this rank to all others, and the answers so far.
struct StallInquiry {
  using Clock = std::chrono::steady_clock;

  uint64_t number = 0;
  Clock::time_point since;  // when the wait began
  Clock::time_point asked;
  Clock::time_point excused;  // the last time at which the others had an excuse
  bool is_sent = false, is_settled = false;
  std::vector<std::optional<StallMessage>> answers;  // by rank
  std::vector<std::optional<std::string>> stacks;

  // `rank` is this rank, which does not ask itself.
  bool all_have_answered(int rank) const;
  bool have_all_entered(int rank) const;
  // Whether all ranks that have not entered the collective have set an activity that may take long.
  bool is_excused(int rank) const;
  // Whether `rank` is the lowest of the waiting ranks, which prints the warning for all of them.
  bool is_lowest_waiting(int rank) const;
  // Whether this is a deadlock: a rank that has not entered the collective has waited for `seconds`
  // in another one that this rank has not entered.
  bool is_deadlock(ExitProtocol& exit_protocol, double seconds) const;

  // Returns a description of the wait in `what` and of the answers.
  std::string describe(const Topology& topology, const std::string& what, double seconds) const;
};

}  // namespace easyddl
