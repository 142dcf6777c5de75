#include "runtime/exit_protocol.h"

#include <algorithm>
#include <thread>
#include <unordered_set>
#include <utility>

#include "common/check.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"

namespace easyddl {
namespace {

constexpr int kRoot = 0;  // keeps the counts of the ranks that have left

// The kinds of messages, and their words: {number of communicators, communicator, begun,
// communicator, begun, ...}; {communicator, number}; {communicator, number, rank}.
constexpr int kCounts = 2, kQuestion = 4, kAnswer = 5;

// If all ranks end within this time, no message is sent.
constexpr std::chrono::milliseconds kGracePeriod{500};
constexpr std::chrono::seconds kBetweenQuestions{1};

// The longest message. MPI sends such short messages at once, so that the sender never waits for a
// receiver that may have ended.
constexpr size_t kWords = 256;

// How long a rank calls MPI for the delivery of its last messages.
constexpr std::chrono::seconds kFlushTimeout{5};

// The time that threads have to leave collectives once all ranks have left.
constexpr std::chrono::seconds kThreadTimeout{2};

}  // namespace

ExitProtocol::ExitProtocol(MPI_Comm world) : comm_(MpiComm::duplicate(world)) {}

size_t ExitProtocol::add_communicator() {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_[next_] = 0;
  return next_++;
}

uint64_t ExitProtocol::begin(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_leaving_) {
    throw Error(
        "easyddl has ended on this rank, because MPI_Finalize has been called or the script has "
        "ended: no collective can follow. Call MPI.Finalize() after the last collective, or leave "
        "the call to easyddl.");
  }
  ++in_progress_;
  return ++counts_[communicator];
}

void ExitProtocol::end_wait(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(communicator);
}

void ExitProtocol::end(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --in_progress_;
  if (!waits_.empty()) waits_.erase(communicator);
}

uint64_t ExitProtocol::begun(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = counts_.find(communicator);
  return found != counts_.end() ? found->second : 0;
}

void ExitProtocol::check(size_t communicator, uint64_t number, const std::string& what,
                         const Topology& topology) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (all_have_left_) {
    throw Error("All ranks have ended their scripts, while a thread of " +
                topology.name_of(topology.rank) + " waits in " + what +
                ". Join the threads that call collectives.");
  }
  LongWait& wait = waits_[communicator];
  if (wait.number != number) wait = {number, Clock::now() + kGracePeriod, -1};
  if (wait.departed < 0) return;
  throw Error(topology.capitalized_name_of(wait.departed) + " has ended its script, while " +
              topology.name_of(topology.rank) + " waits for it in " + what +
              ". All ranks must take the same number of steps and call the same collectives.");
}

void ExitProtocol::serve() {
  while (receive_one()) {
  }
  for (Words& counts : counts_if_due()) {
    if (comm_.rank() == kRoot) {
      record_counts(kRoot, counts);
    } else {
      send(kRoot, kCounts, std::move(counts));
    }
  }
  for (Words& question : questions_due()) {
    if (comm_.rank() == kRoot) {
      answer(question[0], question[1], find_departed(question[0], question[1]));
    } else {
      send(kRoot, kQuestion, std::move(question));
    }
  }
  while (!outgoing_.empty() && have_ended(&outgoing_.front().request, 1)) outgoing_.pop_front();
}

// Returns the messages with this rank's counts, once it has waited for the others to leave. The
// counts are final, because this rank begins no more collectives.
std::vector<ExitProtocol::Words> ExitProtocol::counts_if_due() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_leaving_ || has_sent_counts_ || Clock::now() - leaving_since_ < kGracePeriod) return {};
  has_sent_counts_ = true;
  std::vector<Words> messages{{next_}};
  for (const auto& [communicator, begun] : counts_) {
    if (messages.back().size() + 2 > kWords) messages.push_back({next_});
    messages.back().push_back(communicator);
    messages.back().push_back(begun);
  }
  return messages;
}

std::vector<ExitProtocol::Words> ExitProtocol::questions_due() {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<Words> questions;
  for (auto& [communicator, wait] : waits_) {
    if (Clock::now() < wait.ask_at) continue;
    wait.ask_at = Clock::now() + kBetweenQuestions;
    questions.push_back({communicator, wait.number});
  }
  return questions;
}

// A deque does not move its elements, so that MPI can still read their words.
void ExitProtocol::send(int to, int tag, Words words) {
  outgoing_.push_back({std::move(words), MPI_REQUEST_NULL});
  Outgoing& sending = outgoing_.back();
  EASYDDL_MPI(MPI_Isend, sending.words.data(), static_cast<int>(sending.words.size()), MPI_UINT64_T,
              to, tag, comm_.get(), &sending.request);
}

// Receives one message, if any has arrived.
bool ExitProtocol::receive_one() {
  int arrived = 0, count = 0;
  MPI_Status status;
  EASYDDL_MPI(MPI_Iprobe, MPI_ANY_SOURCE, MPI_ANY_TAG, comm_.get(), &arrived, &status);
  if (arrived == 0) return false;
  EASYDDL_MPI(MPI_Get_count, &status, MPI_UINT64_T, &count);
  Words words(static_cast<size_t>(count));
  const int from = status.MPI_SOURCE, tag = status.MPI_TAG;
  EASYDDL_MPI(MPI_Recv, words.data(), count, MPI_UINT64_T, from, tag, comm_.get(),
              MPI_STATUS_IGNORE);
  if (tag == kCounts) record_counts(from, words);
  if (tag == kAnswer) answer(words[0], words[1], static_cast<int>(words[2]));
  if (tag == kQuestion) {
    const int departed = find_departed(words[0], words[1]);
    // If no rank has left, no answer is sent, and the rank asks again.
    if (departed >= 0) send(from, kAnswer, {words[0], words[1], static_cast<uint64_t>(departed)});
  }
  return true;
}

void ExitProtocol::Fewest::update(uint64_t other, int of) {
  if (other > begun || (other == begun && of > rank)) return;
  begun = other;
  rank = of;
}

void ExitProtocol::record_counts(int from, const Words& words) {
  fewest_communicators_.update(words[0], from);
  for (size_t i = 1; i + 1 < words.size(); i += 2) fewest_[words[i]].update(words[i + 1], from);
}

// Returns a rank that has left without having begun collective `number` of `communicator`, or -1.
// For kGpus, ranks that never used a GPU do not count.
int ExitProtocol::find_departed(size_t communicator, uint64_t number) const {
  if (communicator != kGpus && communicator >= fewest_communicators_.begun)
    return fewest_communicators_.rank;
  const auto found = fewest_.find(communicator);
  return found != fewest_.end() && found->second.begun < number ? found->second.rank : -1;
}

void ExitProtocol::answer(size_t communicator, uint64_t number, int departed) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waits_.find(communicator);
  if (found != waits_.end() && found->second.number == number) found->second.departed = departed;
}

std::vector<bool> ExitProtocol::leave(const std::vector<uint64_t>& values,
                                      const std::function<void()>& serve_others) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_leaving_ = true;
    leaving_since_ = Clock::now();
  }
  count_ = comm_.rank() == kRoot ? values.size() : 0;
  MPI_Request request;
  EASYDDL_MPI(MPI_Iallreduce, &count_, &most_, 1, MPI_UINT64_T, MPI_MAX, comm_.get(), &request);
  complete(request, Clock::time_point::max(), serve_others);
  const std::vector<bool> are_common = find_common(values, most_);
  flush_messages(serve_others);
  wait_for_threads();
  return are_common;
}

// Returns for each of the root's `count` values whether all ranks have it. All ranks have left, so
// that none is late here.
std::vector<bool> ExitProtocol::find_common(const Words& values, size_t count) {
  if (count == 0) return {};
  const int n = static_cast<int>(count);
  Words of_root = values;
  of_root.resize(count);
  EASYDDL_MPI(MPI_Bcast, of_root.data(), n, MPI_UINT64_T, kRoot, comm_.get());
  const std::unordered_set<uint64_t> own(values.begin(), values.end());
  std::vector<int> have, all_have(count);
  for (const uint64_t value : of_root) have.push_back(static_cast<int>(own.count(value)));
  EASYDDL_MPI(MPI_Allreduce, have.data(), all_have.data(), n, MPI_INT, MPI_MIN, comm_.get());
  return {all_have.begin(), all_have.end()};
}

// The last messages of this rank may still be in its own memory: MPI may need further calls of this
// rank to deliver a send that it reports as complete, and MPI_Finalize may wait for the others
// without delivering it. So this rank calls MPI until the others have reached this point too. Their
// messages may be delayed in the same way, but nothing depends on them.
void ExitProtocol::flush_messages(const std::function<void()>& serve_others) {
  // Static, because MPI still uses it if the limit is reached.
  static MPI_Request request;
  EASYDDL_MPI(MPI_Ibarrier, comm_.get(), &request);
  complete(request, Clock::now() + kFlushTimeout, serve_others);
}

// Waits for a request, but not beyond `limit`.
void ExitProtocol::complete(MPI_Request& request, Clock::time_point limit,
                            const std::function<void()>& serve_others) {
  // Polls, because no event wakes this rank when the others end.
  std::chrono::microseconds nap{20};
  for (;;) {
    if (have_ended(&request, 1) || Clock::now() > limit) return;
    serve_others();
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(5000));
  }
}

// Waits until no thread is in a collective, because such a thread polls MPI, which must not be
// called after MPI_Finalize. The next `check` of such a thread throws.
void ExitProtocol::wait_for_threads() {
  const Clock::time_point limit = Clock::now() + kThreadTimeout;
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_have_left_ = true;
      if (in_progress_ == 0) return;
    }
    if (Clock::now() > limit) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace easyddl
