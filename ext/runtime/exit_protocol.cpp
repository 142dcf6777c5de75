#include "runtime/exit_protocol.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

constexpr int kRoot = 0;  // keeps what the ranks that have left had begun

// What a message holds, as words: {communicators made, communicator, begun, communicator, begun,
// ...}; {communicator, number}; {communicator, number, rank}.
constexpr int kCounts = 2, kQuestion = 4, kAnswer = 5;

// Ranks that end together do so within this time: nobody needs to be told.
constexpr std::chrono::milliseconds kTogether{500};
constexpr std::chrono::seconds kBetweenQuestions{1};

// MPI sends so much at once: nobody waits for a receiver that may have ended.
constexpr size_t kWords = 256;

// How long a rank that has heard of all others waits for them to hear of it.
constexpr std::chrono::seconds kUntilHeard{5};

// How long threads have to come out of collectives once all ranks have left.
constexpr std::chrono::seconds kPatience{2};

}  // namespace

ExitProtocol::ExitProtocol(MPI_Comm world) : comm_(MpiComm::duplicate(world)) {}

size_t ExitProtocol::add_communicator() {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_[next_] = 0;
  return next_++;
}

uint64_t ExitProtocol::begin(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (leaves_) {
    throw Error(
        "easyddl has ended on this rank, because MPI_Finalize has been called or the script is "
        "over: no collective can follow. Call MPI.Finalize() after the last collective, or leave "
        "it to easyddl.");
  }
  ++under_way_;
  return ++counts_[communicator];
}

void ExitProtocol::forget(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  waits_.erase(communicator);
}

void ExitProtocol::end(size_t communicator) {
  const std::lock_guard<std::mutex> lock(mutex_);
  --under_way_;
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
  if (wait.number != number) wait = {number, Clock::now() + kTogether, -1};
  if (wait.gone < 0) return;
  throw Error(topology.capitalized_name_of(wait.gone) + " has ended its script, while " +
              topology.name_of(topology.rank) + " waits for it in " + what +
              ". All ranks must take the same number of steps and call the same collectives.");
}

void ExitProtocol::serve() {
  while (receive_one()) {
  }
  for (Words& counts : counts_if_due()) {
    if (comm_.rank() == kRoot) {
      take_in_counts(kRoot, counts);
    } else {
      send(kRoot, kCounts, std::move(counts));
    }
  }
  for (Words& question : questions_due()) {
    if (comm_.rank() == kRoot) {
      answer(question[0], question[1], gone_before(question[0], question[1]));
    } else {
      send(kRoot, kQuestion, std::move(question));
    }
  }
  const auto is_sent = [](Outgoing& sending) {
    int done = 0;
    EASYDDL_MPI(MPI_Test, &sending.request, &done, MPI_STATUS_IGNORE);
    return done != 0;
  };
  while (!outgoing_.empty() && is_sent(outgoing_.front())) outgoing_.pop_front();
}

// What this rank had begun, once it has waited for the others to leave. It begins nothing more.
std::vector<ExitProtocol::Words> ExitProtocol::counts_if_due() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!leaves_ || has_told_ || Clock::now() - leaves_since_ < kTogether) return {};
  has_told_ = true;
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

// A deque moves none of its elements: MPI may still read their words.
void ExitProtocol::send(int to, int tag, Words words) {
  outgoing_.push_back({std::move(words), MPI_REQUEST_NULL});
  Outgoing& sending = outgoing_.back();
  EASYDDL_MPI(MPI_Isend, sending.words.data(), static_cast<int>(sending.words.size()), MPI_UINT64_T,
              to, tag, comm_.get(), &sending.request);
}

// Takes in one message, if any has come.
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
  if (tag == kCounts) take_in_counts(from, words);
  if (tag == kAnswer) answer(words[0], words[1], static_cast<int>(words[2]));
  if (tag == kQuestion) {
    const int gone = gone_before(words[0], words[1]);
    // Else it asks again.
    if (gone >= 0) send(from, kAnswer, {words[0], words[1], static_cast<uint64_t>(gone)});
  }
  return true;
}

void ExitProtocol::Fewest::take_in(uint64_t other, int of) {
  if (other > begun || (other == begun && of > rank)) return;
  begun = other;
  rank = of;
}

void ExitProtocol::take_in_counts(int from, const Words& words) {
  fewest_communicators_.take_in(words[0], from);
  for (size_t i = 1; i + 1 < words.size(); i += 2) fewest_[words[i]].take_in(words[i + 1], from);
}

// A rank that has left without having begun collective `number` of `communicator`, or -1. Not all
// ranks need have used GPUs: those that have not do not count there.
int ExitProtocol::gone_before(size_t communicator, uint64_t number) const {
  if (communicator != kGpus && communicator >= fewest_communicators_.begun)
    return fewest_communicators_.rank;
  const auto found = fewest_.find(communicator);
  return found != fewest_.end() && found->second.begun < number ? found->second.rank : -1;
}

void ExitProtocol::answer(size_t communicator, uint64_t number, int gone) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = waits_.find(communicator);
  if (found != waits_.end() && found->second.number == number) found->second.gone = gone;
}

bool ExitProtocol::leave(bool flag, const std::function<void()>& others) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    leaves_ = true;
    leaves_since_ = Clock::now();
    flag_ = flag ? 1 : 0;
  }
  MPI_Request request;
  EASYDDL_MPI(MPI_Iallreduce, &flag_, &all_flags_, 1, MPI_INT, MPI_MIN, comm_.get(), &request);
  complete(request, Clock::time_point::max(), others);
  wait_for_others_to_hear(others);
  wait_for_threads();
  return all_flags_ == 1;
}

// What this rank has sent last may still lie in its own memory: a send that MPI calls complete
// travels on only when this rank calls MPI, and MPI_Finalize may wait for the others without. So
// this rank goes on until they have come here too. That they tell may be held up likewise, but
// nothing depends on it.
void ExitProtocol::wait_for_others_to_hear(const std::function<void()>& others) {
  // Static: where the limit is reached, MPI still has it.
  static MPI_Request request;
  EASYDDL_MPI(MPI_Ibarrier, comm_.get(), &request);
  complete(request, Clock::now() + kUntilHeard, others);
}

// Waits for a request, but not beyond `limit`.
void ExitProtocol::complete(MPI_Request& request, Clock::time_point limit,
                            const std::function<void()>& others) {
  // Nobody is woken by the others' end.
  std::chrono::microseconds nap{20};
  for (;;) {
    int done = 0;
    EASYDDL_MPI(MPI_Test, &request, &done, MPI_STATUS_IGNORE);
    if (done != 0 || Clock::now() > limit) return;
    others();
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(5000));
  }
}

// A thread that is in a collective polls MPI, which must not be called after MPI_Finalize. Its next
// `check` throws.
void ExitProtocol::wait_for_threads() {
  const Clock::time_point limit = Clock::now() + kPatience;
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      all_have_left_ = true;
      if (under_way_ == 0) return;
    }
    if (Clock::now() > limit) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

}  // namespace easyddl
