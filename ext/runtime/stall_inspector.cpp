#include "runtime/stall_inspector.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "common/check.h"
#include "common/console.h"
#include "common/text.h"
#include "common/thread.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"

namespace easyddl {
namespace {

constexpr int kTag = 3;
constexpr std::chrono::milliseconds kPeriod{100};
// The seconds in which the others must answer.
constexpr double kAnswerTimeout = 2;

// A rank that fails sends an announcement to this rank, which sends it to all others. So P ranks
// that fail at once send 2 P messages.
constexpr int kAnnouncingRank = 0;

constexpr size_t kFailureBytes = 1200;

}  // namespace

struct StallInspector::Wait {
  uint64_t number;
  std::string what;
  Clock::time_point since;
};

struct StallInspector::Outgoing {
  std::shared_ptr<const StallMessage> message;  // may be sent to several ranks at once
  MPI_Request request;
};

StallInspector::StallInspector(MPI_Comm world, const Topology& topology,
                               ExitProtocol& exit_protocol, Deadlines deadlines)
    : comm_(MpiComm::duplicate(world)),
      topology_(topology),
      exit_protocol_(exit_protocol),
      deadlines_(deadlines) {
  if (topology_.size == 1) return;
  // Detached, because it answers the others for as long as the process lives.
  const auto watch = [this] {
    try {
      run();
    } catch (const std::exception& error) {
      write_line(
          std::string("easyddl: the stall inspector has failed, and no longer checks waits: ") +
          error.what());
    }
  };
  start_thread("easyddl stalls", "that answers other ranks about this rank's progress", watch)
      .detach();
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
  stack_ = nullptr;  // the script has ended, and the interpreter may have too
}

void StallInspector::serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  serve(lock);
}

void StallInspector::end_wait(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(communicator);
  inquiries_.erase(communicator);
}

void StallInspector::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stopped_) {
    serve(lock);
    if (!stopped_) wake_.wait_for(lock, kPeriod);
  }
}

void StallInspector::serve(std::unique_lock<std::mutex>& lock) {
  time_.tick();
  receive_all();
  exit_protocol_.serve();
  send_failures();
  ask_all();
  free_sent();
  send_stacks(lock);
}

void StallInspector::receive_all() {
  for (;;) {
    int arrived = 0;
    MPI_Status status;
    EASYDDL_MPI(MPI_Iprobe, MPI_ANY_SOURCE, kTag, comm_.get(), &arrived, &status);
    if (arrived == 0) return;
    StallMessage message{};
    EASYDDL_MPI(MPI_Recv, &message, sizeof message, MPI_BYTE, status.MPI_SOURCE, kTag, comm_.get(),
                MPI_STATUS_IGNORE);
    take(status.MPI_SOURCE, message);
  }
}

void StallInspector::take(int from, const StallMessage& message) {
  if (message.kind == StallMessage::Kind::failure) {
    if (record_failure(message.communicator, message.text.data()) &&
        topology_.rank == kAnnouncingRank) {
      const std::lock_guard<std::mutex> lock(failures_mutex_);
      unsent_failures_.push_back(message.communicator);
    }
    return;
  }
  if (message.kind == StallMessage::Kind::question) {
    const StallMessage answer = answer_to(message);
    send(from, std::make_shared<const StallMessage>(answer));
    if (answer.has_entered == 0) stack_requests_.emplace_back(from, answer);
    return;
  }
  const auto found = inquiries_.find(message.communicator);
  if (found == inquiries_.end() || found->second.number != message.number) return;
  const size_t rank = static_cast<size_t>(from);
  if (message.kind == StallMessage::Kind::answer) {
    found->second.answers[rank] = message;
  } else {
    found->second.stacks[rank] = message.text.data();
  }
}

StallMessage StallInspector::answer_to(const StallMessage& question) {
  StallMessage answer{};
  answer.kind = StallMessage::Kind::answer;
  answer.communicator = question.communicator;
  answer.number = question.number;
  answer.has_entered = exit_protocol_.begun(question.communicator) >= question.number ? 1 : 0;
  store(answer.activity, activity_);
  for (const auto& [communicator, wait] : waits_) {
    const double seconds = time_.seconds_since(wait.since);
    if (communicator == question.communicator || seconds < answer.wait_seconds) continue;
    answer.is_waiting = 1;
    answer.wait_communicator = communicator;
    answer.wait_number = wait.number;
    answer.wait_seconds = seconds;
    store(answer.wait_what, wait.what);
  }
  return answer;
}

void StallInspector::send(int to, std::shared_ptr<const StallMessage> message) {
  outgoing_.push_back(std::make_unique<Outgoing>(Outgoing{std::move(message), MPI_REQUEST_NULL}));
  Outgoing& sending = *outgoing_.back();
  EASYDDL_MPI(MPI_Isend, sending.message.get(), sending.message->bytes(), MPI_BYTE, to, kTag,
              comm_.get(), &sending.request);
}

void StallInspector::send_to_all(const StallMessage& message) {
  const auto shared = std::make_shared<const StallMessage>(message);
  for (int rank = 0; rank < topology_.size; ++rank) {
    if (rank != topology_.rank) send(rank, shared);
  }
}

void StallInspector::free_sent() {
  const auto is_sent = [](const std::unique_ptr<Outgoing>& sending) {
    return have_ended(&sending->request, 1);
  };
  outgoing_.erase(std::remove_if(outgoing_.begin(), outgoing_.end(), is_sent), outgoing_.end());
}

// Records a failure. Returns whether it is the first one of the communicator.
bool StallInspector::record_failure(size_t communicator, const std::string& text) {
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  any_failure_.store(true, std::memory_order_release);
  return failures_.emplace(communicator, text.substr(0, kFailureBytes)).second;
}

void StallInspector::announce_failure(size_t communicator, const std::string& reason) noexcept {
  if (topology_.size == 1) return;
  try {
    const std::string text =
        "A collective failed part-way on " + topology_.name_of(topology_.rank) + ": " + reason;
    if (!record_failure(communicator, text)) return;
    const std::lock_guard<std::mutex> lock(failures_mutex_);
    unsent_failures_.push_back(communicator);
  } catch (const std::exception&) {
    return;  // no memory is left for the text: this rank's own error reports that
  }
  wake_.notify_one();
}

void StallInspector::add_child(size_t child, size_t parent) {
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  parents_.emplace(child, parent);
}

void StallInspector::remove_child(size_t child) {
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  parents_.erase(child);
}

std::string StallInspector::failure_of(size_t communicator) const {
  if (!any_failure_.load(std::memory_order_acquire)) return "";
  const std::lock_guard<std::mutex> lock(failures_mutex_);
  for (;;) {
    const auto found = failures_.find(communicator);
    if (found != failures_.end()) return found->second;
    const auto parent = parents_.find(communicator);
    if (parent == parents_.end()) return "";
    communicator = parent->second;
  }
}

void StallInspector::send_failures() {
  if (!any_failure_.load(std::memory_order_acquire)) return;
  std::vector<StallMessage> messages;
  {
    const std::lock_guard<std::mutex> lock(failures_mutex_);
    for (size_t communicator : std::exchange(unsent_failures_, {})) {
      StallMessage& message = messages.emplace_back();
      message.kind = StallMessage::Kind::failure;
      message.communicator = communicator;
      store(message.text, failures_[communicator]);
    }
  }
  for (const StallMessage& message : messages) {
    if (topology_.rank == kAnnouncingRank) {
      send_to_all(message);
    } else {
      send(kAnnouncingRank, std::make_shared<const StallMessage>(message));
    }
  }
}

void StallInspector::ask_all() {
  for (auto& [communicator, inquiry] : inquiries_) {
    if (std::exchange(inquiry.is_sent, true)) continue;
    StallMessage question{};
    question.kind = StallMessage::Kind::question;
    question.communicator = communicator;
    question.number = inquiry.number;
    send_to_all(question);
  }
}

// The stacks are sent separately from the answers, because a thread may hold Python's lock for
// long.
void StallInspector::send_stacks(std::unique_lock<std::mutex>& lock) {
  if (stack_requests_.empty()) return;
  std::string text;
  if (const auto stack = stack_) {
    lock.unlock();
    text = stack();
    lock.lock();
    if (stopped_) return;  // the thread that calls `serve` now sends the rest
  }
  for (auto [rank, message] : std::exchange(stack_requests_, {})) {
    message.kind = StallMessage::Kind::stack;
    store(message.text, text.substr(text.size() - std::min(text.size(), message.text.size() - 1)));
    send(rank, std::make_shared<const StallMessage>(message));
  }
}

bool StallInspector::is_time_to_ask(const StallInquiry& inquiry, double seconds) {
  const double ago = time_.seconds_since(inquiry.asked);
  const auto passed = [&](double deadline) {
    return deadline > 0 && seconds >= deadline && seconds - ago < deadline;
  };
  const bool again = inquiry.is_settled && period() > 0 && seconds >= period() && ago >= period();
  return passed(deadlines_.warn) || passed(deadlines_.abort) || again;
}

// The shorter of the deadlines: a rank's excuse may have ended since it was last asked.
double StallInspector::period() const {
  if (deadlines_.warn <= 0 || deadlines_.abort <= 0) return deadlines_.warn + deadlines_.abort;
  return std::min(deadlines_.warn, deadlines_.abort);
}

// Returns the inquiry of a wait. Begins a new inquiry if it is time to ask.
StallInquiry& StallInspector::inquire(size_t communicator, uint64_t number, Clock::time_point since,
                                      double seconds) {
  StallInquiry& inquiry = inquiries_[communicator];
  if (inquiry.number != number) {
    inquiry = StallInquiry{};
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
  return inquiry;
}

void StallInspector::check(size_t communicator, uint64_t number, const std::string& what,
                           Clock::time_point since, bool if_all_have_entered) {
  const std::string failure = failure_of(communicator);
  if (!failure.empty()) throw Error(failure);
  std::unique_lock<std::mutex> lock(mutex_);
  waits_[communicator] = {number, what, since};
  const double seconds = time_.seconds_since(since);
  StallInquiry& inquiry = inquire(communicator, number, since, seconds);
  if (inquiry.is_settled) return;
  if (time_.seconds_since(inquiry.asked) < kAnswerTimeout &&
      !inquiry.all_have_answered(topology_.rank)) {
    return;
  }
  inquiry.is_settled = true;
  std::string text = inquiry.describe(topology_, what, seconds);
  const bool is_hung = if_all_have_entered && inquiry.have_all_entered(topology_.rank);
  if (is_hung)
    text += "\n  All ranks have entered it, so a GPU or a connection between GPUs hangs.";
  // A rank that waits for this rank is not busy, even if it has set an activity.
  const bool deadlock = inquiry.is_deadlock(exit_protocol_, deadlines_.abort);
  if (!is_hung && !deadlock && inquiry.is_excused(topology_.rank)) inquiry.excused = Clock::now();
  const double late = time_.seconds_since(inquiry.excused);
  if (deadlines_.abort > 0 && late >= deadlines_.abort) {
    if (deadlock)
      text += "\nThis is a deadlock: the ranks wait for each other in different collectives.";
    throw Error(text + "\nThat is too long: EASYDDL_STALL_ABORT is " + rounded(deadlines_.abort) +
                " s.");
  }
  // Each rank waits in a collective that the other has not entered. Unless another thread enters
  // it, this is a deadlock.
  if (inquiry.is_deadlock(exit_protocol_, 0)) {
    text +=
        "\n  These ranks wait for each other in different collectives. Unless another thread "
        "enters "
        "the missing collective, this is a deadlock.";
  }
  const bool prints = deadlines_.warn > 0 && inquiry.is_lowest_waiting(topology_.rank);
  lock.unlock();
  if (prints) write_line("easyddl: warning: " + text);
}

}  // namespace easyddl
