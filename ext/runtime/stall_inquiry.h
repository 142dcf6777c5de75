// What a rank that waits for long asks the others, and what their answers say.
#pragma once

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

// Small enough to be sent at once: a rank that answers must not wait for the one that asks. Only as
// much of the text travels as there is.
struct StallMessage {
  enum class Kind : uint32_t { question, answer, stack, failure };

  Kind kind;
  uint32_t has_come;  // to the collective asked about
  uint64_t communicator, number;
  uint32_t waits;  // in another collective, namely:
  uint64_t wait_communicator, wait_number;
  double wait_seconds;
  char wait_what[512];
  char activity[256];
  char text[2400];  // where the script stands, or why the communicator failed

  int bytes() const {
    return static_cast<int>(offsetof(StallMessage, text) + std::strlen(text) + 1);
  }
};

// One question of this rank to all others, and the answers so far.
struct StallInquiry {
  using Clock = std::chrono::steady_clock;

  uint64_t number = 0;
  Clock::time_point since;  // when the wait began
  Clock::time_point asked;
  Clock::time_point excused;  // until then the others had a reason to be late
  bool is_sent = false, is_settled = false;
  std::vector<std::optional<StallMessage>> answers;  // by rank
  std::vector<std::optional<std::string>> stacks;

  // `rank` is this rank, which does not ask itself.
  bool all_have_answered(int rank) const;
  bool have_all_come(int rank) const;
  // Whether all who have not come do something that is known to take long.
  bool is_excused(int rank) const;
  // One rank of those that wait speaks for all: the lowest.
  bool is_spokesman(int rank) const;
  // True for a deadlock: a rank that has not come has waited for so long in a collective that this
  // rank has not entered.
  bool has_parted(ExitProtocol& exit_protocol, double seconds) const;

  // What the answers say of the wait in `what`, in words.
  std::string describe(const Topology& topology, const std::string& what, double seconds) const;
};

}  // namespace easyddl
