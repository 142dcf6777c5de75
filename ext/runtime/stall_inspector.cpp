#include "runtime/stall_inspector.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <exception>
#include <optional>
#include <sstream>
#include <utility>

#include "common/check.h"
#include "common/console.h"
#include "common/thread.h"

namespace easyddl {
namespace {

constexpr int kTag = 3;
constexpr std::chrono::milliseconds kPeriod{100};
// How long the others have to answer.
constexpr std::chrono::seconds kPatience{2};

enum class Kind : uint32_t { question, answer, stack, failure };

// Whom a rank that fails tells, who tells the others: so P ranks that fail at once send 2 P
// messages.
constexpr int kHerald = 0;

constexpr size_t kFailureBytes = 1200;

// Copies as much of a text as there is room for, the end of it if `tail`.
template <size_t N>
void store(char (&room)[N], const std::string& text, bool tail = false) {
  const std::string part = tail && text.size() >= N ? text.substr(text.size() - N + 1) : text;
  const size_t length = std::min(part.size(), N - 1);
  std::memcpy(room, part.data(), length);
  room[length] = '\0';
}

std::string indented(const std::string& text) {
  std::istringstream lines(text);
  std::string result, line;
  while (std::getline(lines, line)) result += "\n    " + line;
  return result;
}

}  // namespace

std::string rounded(double seconds) { return std::to_string(static_cast<long>(seconds + 0.5)); }

// Small enough to be sent at once: a rank that answers must not wait for the one that asks. Only as
// much of the text travels as there is.
struct StallInspector::Message {
  Kind kind;
  uint32_t has_come;  // to the collective asked about
  uint64_t communicator, number;
  uint32_t waits;  // in another collective, namely:
  uint64_t wait_communicator, wait_number;
  double wait_seconds;
  char wait_what[512];
  char activity[256];
  char text[2400];  // where the script stands, or why the communicator failed

  int bytes() const { return static_cast<int>(offsetof(Message, text) + std::strlen(text) + 1); }
};

struct StallInspector::Wait {
  uint64_t number;
  std::string what;
  Clock::time_point since;
};

struct StallInspector::Inquiry {
  uint64_t number = 0;
  Clock::time_point since;  // when the wait began
  Clock::time_point asked;
  Clock::time_point excused;  // until then the others had a reason to be late
  bool is_sent = false, is_settled = false;
  std::vector<std::optional<Message>> answers;  // by rank
  std::vector<std::optional<std::string>> stacks;
};

struct StallInspector::Sending {
  std::shared_ptr<const Message> message;  // may be on its way to several ranks
  MPI_Request request;
};

StallInspector::StallInspector(MPI_Comm world, const Topology& topology,
                               ExitProtocol& exit_protocol, Deadlines deadlines)
    : comm_(MpiComm::duplicate(world)),
      topology_(topology),
      exit_protocol_(exit_protocol),
      deadlines_(deadlines) {
  if (topology_.size == 1) return;
  // Detached: it serves the others for as long as the process lives.
  const auto watch = [this] {
    try {
      run();
    } catch (const std::exception& error) {
      write_line(std::string("easyddl: the watch over stalls has ended: ") + error.what());
    }
  };
  start_thread("easyddl stalls", "that tells other ranks where this one stands", watch).detach();
}

StallInspector::~StallInspector() = default;

void StallInspector::set_stack(std::function<std::string()> stack) {
  const std::lock_guard<std::mutex> lock(mutex_);
  stack_ = std::move(stack);
}

void StallInspector::set_activity(std::string activity) {
  const std::lock_guard<std::mutex> lock(mutex_);
  activity_ = std::move(activity);
}

void StallInspector::stop() {
  const std::lock_guard<std::mutex> lock(mutex_);
  stopped_ = true;
}

void StallInspector::forget(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(communicator);
  inquiries_.erase(communicator);
}

void StallInspector::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    receive_all();
    exit_protocol_.serve();
    spread_failures();
    ask_all();
    free_sent();
    send_stacks(lock);
    if (!stopped_) wake_.wait_for(lock, kPeriod);
  }
}

void StallInspector::receive_all() {
  for (;;) {
    int arrived = 0;
    MPI_Status status;
    EASYDDL_MPI(MPI_Iprobe, MPI_ANY_SOURCE, kTag, comm_.get(), &arrived, &status);
    if (arrived == 0) return;
    Message message{};
    EASYDDL_MPI(MPI_Recv, &message, sizeof message, MPI_BYTE, status.MPI_SOURCE, kTag, comm_.get(),
                MPI_STATUS_IGNORE);
    take(status.MPI_SOURCE, message);
  }
}

void StallInspector::take(int from, const Message& message) {
  if (message.kind == Kind::failure) {
    if (note_failure(message.communicator, message.text) && topology_.rank == kHerald) {
      const std::lock_guard<std::mutex> lock(failures_mutex_);
      to_spread_.push_back(message.communicator);
    }
    return;
  }
  if (message.kind == Kind::question) {
    const Message answer = answer_to(message);
    send(from, std::make_shared<const Message>(answer));
    if (answer.has_come == 0) want_stack_.emplace_back(from, answer);
    return;
  }
  const auto found = inquiries_.find(message.communicator);
  if (found == inquiries_.end() || found->second.number != message.number) return;
  const size_t rank = static_cast<size_t>(from);
  if (message.kind == Kind::answer) {
    found->second.answers[rank] = message;
  } else {
    found->second.stacks[rank] = message.text;
  }
}

StallInspector::Message StallInspector::answer_to(const Message& question) {
  Message answer{};
  answer.kind = Kind::answer;
  answer.communicator = question.communicator;
  answer.number = question.number;
  answer.has_come = exit_protocol_.begun(question.communicator) >= question.number ? 1 : 0;
  store(answer.activity, activity_);
  for (const auto& [communicator, wait] : waits_) {
    const double seconds = std::chrono::duration<double>(Clock::now() - wait.since).count();
    if (communicator == question.communicator || seconds < answer.wait_seconds) continue;
    answer.waits = 1;
    answer.wait_communicator = communicator;
    answer.wait_number = wait.number;
    answer.wait_seconds = seconds;
    store(answer.wait_what, wait.what);
  }
  return answer;
}

void StallInspector::send(int to, std::shared_ptr<const Message> message) {
  sendings_.push_back(std::make_unique<Sending>(Sending{std::move(message), MPI_REQUEST_NULL}));
  Sending& sending = *sendings_.back();
  EASYDDL_MPI(MPI_Isend, sending.message.get(), sending.message->bytes(), MPI_BYTE, to, kTag,
              comm_.get(), &sending.request);
}

void StallInspector::send_to_all(const Message& message) {
  const auto shared = std::make_shared<const Message>(message);
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (rank != topology_.rank) send(rank, shared);
  }
}

void StallInspector::free_sent() {
  const auto is_sent = [](const std::unique_ptr<Sending>& sending) {
    int done = 0;
    EASYDDL_MPI(MPI_Test, &sending->request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  };
  sendings_.erase(std::remove_if(sendings_.begin(), sendings_.end(), is_sent), sendings_.end());
}

// Whether it is the communicator's first.
bool StallInspector::note_failure(size_t communicator, const std::string& text) {
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  any_failure_.store(true, std::memory_order_release);
  return failures_.emplace(communicator, text.substr(0, kFailureBytes)).second;
}

void StallInspector::announce_failure(size_t communicator, const std::string& reason) noexcept {
  if (topology_.size == 1) return;
  try {
    const std::string text =
        "A collective failed half-way on " + topology_.name_of(topology_.rank) + ": " + reason;
    if (!note_failure(communicator, text)) return;
    const std::lock_guard<std::mutex> lock(failures_mutex_);
    to_spread_.push_back(communicator);
  } catch (const std::exception&) {
    return;  // no memory is left even for that: this rank's own error says so
  }
  wake_.notify_one();
}

std::string StallInspector::failure_of(size_t communicator) const {
  if (!any_failure_.load(std::memory_order_acquire)) return "";
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  const auto found = failures_.find(communicator);
  return found == failures_.end() ? "" : found->second;
}

void StallInspector::spread_failures() {
  if (!any_failure_.load(std::memory_order_acquire)) return;
  std::vector<Message> messages;
  {
    const std::lock_guard<std::mutex> lock(failures_mutex_);
    for (size_t communicator : std::exchange(to_spread_, {})) {
      Message& message = messages.emplace_back();
      message.kind = Kind::failure;
      message.communicator = communicator;
      store(message.text, failures_[communicator]);
    }
  }
  for (const Message& message : messages) {
    if (topology_.rank == kHerald) {
      send_to_all(message);
    } else {
      send(kHerald, std::make_shared<const Message>(message));
    }
  }
}

void StallInspector::ask_all() {
  for (auto& [communicator, inquiry] : inquiries_) {
    if (std::exchange(inquiry.is_sent, true)) continue;
    Message question{};
    question.kind = Kind::question;
    question.communicator = communicator;
    question.number = inquiry.number;
    send_to_all(question);
  }
}

// Apart from the answers, because whoever holds Python's lock may do so for long.
void StallInspector::send_stacks(std::unique_lock<std::mutex>& lock) {
  if (want_stack_.empty()) return;
  const auto wanted = std::exchange(want_stack_, {});
  const auto stack = stack_;
  lock.unlock();
  const std::string text = stack ? stack() : "";
  lock.lock();
  for (auto [rank, message] : wanted) {
    if (stopped_) return;
    message.kind = Kind::stack;
    store(message.text, text, true);
    send(rank, std::make_shared<const Message>(message));
  }
}

bool StallInspector::is_time_to_ask(const Inquiry& inquiry, double seconds) const {
  const double ago = std::chrono::duration<double>(Clock::now() - inquiry.asked).count();
  const auto passed = [&](double deadline) {
    return deadline > 0 && seconds >= deadline && seconds - ago < deadline;
  };
  const bool again = inquiry.is_settled && period() > 0 && seconds >= period() && ago >= period();
  return passed(deadlines_.warn) || passed(deadlines_.abort) || again;
}

// The shorter of the deadlines: whoever had a reason to be late may have none later.
double StallInspector::period() const {
  if (deadlines_.warn <= 0 || deadlines_.abort <= 0) return deadlines_.warn + deadlines_.abort;
  return std::min(deadlines_.warn, deadlines_.abort);
}

void StallInspector::check(size_t communicator, uint64_t number, const std::string& what,
                           Clock::time_point since, bool if_all_have_come) {
  const std::string failure = failure_of(communicator);
  if (!failure.empty()) throw Error(failure);
  std::unique_lock<std::mutex> lock(mutex_);
  waits_[communicator] = {number, what, since};
  const double seconds = std::chrono::duration<double>(Clock::now() - since).count();
  Inquiry& inquiry = inquiries_[communicator];
  if (inquiry.number != number) {
    inquiry = Inquiry{};
    inquiry.number = number;
    inquiry.asked = inquiry.excused = since;
    inquiry.is_sent = inquiry.is_settled = true;
  }
  if (is_time_to_ask(inquiry, seconds)) {
    const size_t size = static_cast<size_t>(topology_.size);
    inquiry.asked = Clock::now();
    inquiry.is_sent = inquiry.is_settled = false;
    inquiry.answers.assign(size, std::nullopt);
    inquiry.stacks.assign(size, std::nullopt);
    wake_.notify_one();
  }
  if (inquiry.is_settled) return;
  if (Clock::now() - inquiry.asked < kPatience && !all_have_answered(inquiry)) return;
  inquiry.is_settled = true;
  std::string text = describe(inquiry, what, seconds);
  const bool hangs = if_all_have_come && have_all_come(inquiry);
  if (hangs) text += "\n  All ranks have come: it is the GPUs, or what connects them.";
  // A rank that waits for this one is not busy, whatever it says that it does.
  const bool parted = has_parted(inquiry, deadlines_.abort);
  if (!hangs && !parted && is_excused(inquiry)) inquiry.excused = Clock::now();
  const std::chrono::duration<double> late = Clock::now() - inquiry.excused;
  if (deadlines_.abort > 0 && late.count() >= deadlines_.abort) {
    if (parted) text += "\nThe ranks have parted ways: none can go on.";
    throw Error(text + "\nThat is too long: EASYDDL_STALL_ABORT is " + rounded(deadlines_.abort) +
                " s.");
  }
  // No more than that can be known: a thread of either may still be on its way.
  if (has_parted(inquiry, 0)) {
    text +=
        "\n  Each waits where the other has not come: unless another thread of theirs does, "
        "the ranks have parted ways.";
  }
  const bool speaks = deadlines_.warn > 0 && is_spokesman(inquiry);
  lock.unlock();
  if (speaks) write_line("easyddl: warning: " + text);
}

bool StallInspector::all_have_answered(const Inquiry& inquiry) const {
  for (size_t rank = 0; rank < inquiry.answers.size(); ++rank) {
    if (rank == static_cast<size_t>(topology_.rank)) continue;
    const std::optional<Message>& answer = inquiry.answers[rank];
    if (!answer || (answer->has_come == 0 && !inquiry.stacks[rank])) return false;
  }
  return true;
}

std::string StallInspector::describe(const Inquiry& inquiry, const std::string& what,
                                     double seconds) const {
  std::string text = topology_.name_of(topology_.rank) + " has waited for " + rounded(seconds) +
                     " s in " + what + ".";
  for (size_t rank = 0; rank < inquiry.answers.size(); ++rank) {
    if (rank == static_cast<size_t>(topology_.rank)) continue;
    const std::optional<Message>& answer = inquiry.answers[rank];
    if (!answer) {
      text += "\n  " + topology_.name_of(rank) +
              " does not answer: it is stopped, or cannot be reached.";
    } else if (answer->has_come == 0) {
      text += "\n  " + topology_.name_of(rank) + " has not come";
      if (answer->activity[0] != '\0') text += ": it is busy with " + std::string(answer->activity);
      if (answer->waits != 0) {
        text +=
            ": it has waited for " + rounded(answer->wait_seconds) + " s in " + answer->wait_what;
      }
      const std::optional<std::string>& stack = inquiry.stacks[rank];
      if (!stack) text += ". Where its script stands is unknown: something holds Python's lock";
      if (stack && !stack->empty()) text += ". Its script is at" + indented(*stack);
    }
  }
  return text;
}

// Whether a rank that has not come has waited for so long where this rank has not come.
bool StallInspector::has_parted(const Inquiry& inquiry, double seconds) const {
  return std::any_of(inquiry.answers.begin(), inquiry.answers.end(),
                     [this, seconds](const std::optional<Message>& answer) {
                       return answer && answer->has_come == 0 && answer->waits != 0 &&
                              answer->wait_seconds >= seconds &&
                              exit_protocol_.begun(answer->wait_communicator) < answer->wait_number;
                     });
}

// Whether all who have not come do something that is known to take long.
bool StallInspector::is_excused(const Inquiry& inquiry) const {
  for (size_t rank = 0; rank < inquiry.answers.size(); ++rank) {
    if (rank == static_cast<size_t>(topology_.rank)) continue;
    const std::optional<Message>& answer = inquiry.answers[rank];
    if (!answer || (answer->has_come == 0 && answer->activity[0] == '\0')) return false;
  }
  return true;
}

bool StallInspector::have_all_come(const Inquiry& inquiry) const {
  for (size_t rank = 0; rank < inquiry.answers.size(); ++rank) {
    if (rank == static_cast<size_t>(topology_.rank)) continue;
    if (!inquiry.answers[rank] || inquiry.answers[rank]->has_come == 0) return false;
  }
  return true;
}

// One rank of those that wait speaks for all: the lowest.
bool StallInspector::is_spokesman(const Inquiry& inquiry) const {
  return std::none_of(
      inquiry.answers.begin(), inquiry.answers.begin() + topology_.rank,
      [](const std::optional<Message>& answer) { return answer && answer->has_come != 0; });
}

}  // namespace easyddl
