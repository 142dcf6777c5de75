#include "runtime/stall_inquiry.h"

#include <algorithm>
#include <sstream>

#include "runtime/deadlines.h"

namespace easyddl {
namespace {

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result, line;
  while (std::getline(lines, line)) result += "\n    " + line;
  return result;
}

// Returns whether a condition holds for each of `size` ranks but `rank`.
template <class Condition>
bool holds_for_others(int rank, size_t size, Condition condition) {
  for (size_t other = 0; other < size; ++other) {
    if (other != static_cast<size_t>(rank) && !condition(other)) return false;
  }
  return true;
}

}  // namespace

bool StallInquiry::all_have_answered(int rank) const {
  return holds_for_others(rank, answers.size(), [this](size_t other) {
    return answers[other] && (answers[other]->has_entered != 0 || stacks[other]);
  });
}

std::string StallInquiry::describe(const Topology& topology, const std::string& what,
                                   double seconds) const {
  std::string text = topology.name_of(topology.rank) + " has waited for " + rounded(seconds) +
                     " s in " + what + ".";
  for (size_t other = 0; other < answers.size(); ++other) {
    if (other == static_cast<size_t>(topology.rank)) continue;
    const std::optional<StallMessage>& answer = answers[other];
    if (!answer) {
      text += "\n  " + topology.name_of(other) +
              " does not answer: it is stopped, or cannot be reached.";
    } else if (answer->has_entered == 0) {
      text += "\n  " + topology.name_of(other) + " has not entered it";
      if (answer->activity[0] != '\0')
        text += ": it is busy with " + std::string(answer->activity.data());
      if (answer->is_waiting != 0) {
        text += ": it has waited for " + rounded(answer->wait_seconds) + " s in " +
                answer->wait_what.data();
      }
      const std::optional<std::string>& stack = stacks[other];
      if (!stack) text += ". Its script's stack is unknown, because a thread holds Python's lock";
      if (stack && !stack->empty()) text += ". Its script is at" + indented(*stack);
    }
  }
  return text;
}

bool StallInquiry::is_deadlock(ExitProtocol& exit_protocol, double seconds) const {
  return std::any_of(answers.begin(), answers.end(),
                     [&](const std::optional<StallMessage>& answer) {
                       return answer && answer->has_entered == 0 && answer->is_waiting != 0 &&
                              answer->wait_seconds >= seconds &&
                              exit_protocol.begun(answer->wait_communicator) < answer->wait_number;
                     });
}

bool StallInquiry::is_excused(int rank) const {
  return holds_for_others(rank, answers.size(), [this](size_t other) {
    const std::optional<StallMessage>& answer = answers[other];
    return answer && (answer->has_entered != 0 || answer->activity[0] != '\0');
  });
}

bool StallInquiry::have_all_entered(int rank) const {
  return holds_for_others(rank, answers.size(), [this](size_t other) {
    return answers[other] && answers[other]->has_entered != 0;
  });
}

bool StallInquiry::is_lowest_waiting(int rank) const {
  return std::none_of(
      answers.begin(), answers.begin() + rank,
      [](const std::optional<StallMessage>& answer) { return answer && answer->has_entered != 0; });
}

}  // namespace easyddl
