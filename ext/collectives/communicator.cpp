#include "collectives/communicator.h"

#include <exception>
#include <utility>

#include "collectives/barrier.h"
#include "collectives/message_tags.h"
#include "collectives/signal_guard.h"
#include "common/check.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Returns the message of a Python exception without its traceback.
std::string first_paragraph(const std::string& text) { return text.substr(0, text.find("\n\n")); }

}  // namespace

// Lets only one thread of this rank use the communicator until the end of the scope.
class Communicator::ThreadLock {
 public:
  // Waits while another thread is in a collective, which may take long. Checks for signals
  // meanwhile.
  ThreadLock(Communicator& communicator, const Fingerprint& fingerprint)
      : communicator_(communicator) {
    refuse_in_handlers(fingerprint);
    std::unique_lock<std::mutex> lock(communicator_.mutex_);
    while (communicator_.is_in_use_) {
      communicator_.is_free_.wait_for(lock, kIdlePeriod);
      if (!communicator_.is_in_use_ || !communicator_.user_idle_) continue;
      lock.unlock();
      {
        const SignalHandlerScope scope(fingerprint.text);
        communicator_.user_idle_();
      }
      lock.lock();
    }
    communicator_.is_in_use_ = true;
  }
  ~ThreadLock() {
    {
      const std::lock_guard<std::mutex> lock(communicator_.mutex_);
      communicator_.is_in_use_ = false;
    }
    communicator_.is_free_.notify_one();
  }
  ThreadLock(const ThreadLock&) = delete;
  ThreadLock& operator=(const ThreadLock&) = delete;

 private:
  Communicator& communicator_;
};

// A collective from its start to its end. Counts it, and reports to all ranks if it fails part-way.
class Communicator::RunningCall {
 public:
  RunningCall(Communicator& communicator, const CollectiveCall& call)
      : communicator_(communicator), call_(call), thread_lock_(communicator, call.fingerprint) {
    const std::string failure = communicator_.failure();
    if (!failure.empty()) {
      throw Error(
          "An earlier collective failed part-way, so this communicator cannot be used any more: " +
          failure + " This call is not the cause: " + call.fingerprint.text + ".");
    }
    communicator_.number_ = communicator_.world_.exit_protocol().begin(communicator_.id_);
    communicator_.call_ = &call;
    if (Trace::on() != nullptr) begin_ = Trace::now();
  }
  ~RunningCall() {
    trace();
    communicator_.call_ = nullptr;
    if (communicator_.slow_ == communicator_.number_) {
      communicator_.world_.stall_inspector().end_wait(communicator_.id_);
    }
    communicator_.world_.exit_protocol().end(communicator_.id_);
  }
  RunningCall(const RunningCall&) = delete;
  RunningCall& operator=(const RunningCall&) = delete;

  void fail(const std::string& reason) {
    communicator_.give_up(call_.name + (" failed part-way: " + reason));
  }

 private:
  // (communicator, number) matches the spans of one collective across ranks.
  void trace() const {
    if (Trace::on() == nullptr || begin_ == 0) return;
    Trace::on()->add(call_.name, begin_, Trace::now(),
                     {{"communicator", static_cast<int64_t>(communicator_.id_)},
                      {"number", static_cast<int64_t>(communicator_.number_)},
                      {"bytes", static_cast<int64_t>(call_.bytes)}},
                     &call_.fingerprint.text);
  }

  Communicator& communicator_;
  const CollectiveCall& call_;
  const ThreadLock thread_lock_;
  int64_t begin_ = 0;  // for the timeline
};

Communicator::Communicator(World& world, size_t most_bytes)
    : world_(world),
      id_(world.exit_protocol().add_communicator()),
      context_(std::make_unique<CollectiveContext>(world, first_tag(world.comm(), id_), most_bytes,
                                                   [this] { idle(); })) {}

Communicator::~Communicator() {
  close();
  world_.stall_inspector().remove_child(id_);
}

void Communicator::close() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_in_use_ || context_ == nullptr) return;
  {
    const std::lock_guard<std::mutex> failure_lock(failure_mutex_);
    if (own_failure_.empty()) own_failure_ = "it has been closed.";
  }
  gave_up_ = true;
  if (context_->has_messages_in_progress()) keep_forever(std::move(context_));
  context_.reset();
}

void Communicator::run(const CollectiveCall& call,
                       const std::function<void(CollectiveContext&)>& body) {
  RunningCall running(*this, call);
  try {
    const CollectiveContext::FingerprintScope scope(*context_, call.fingerprint);
    body(*context_);
  } catch (const CollectiveError&) {
    throw;
  } catch (const std::exception& error) {
    running.fail(error.what());
    throw;
  } catch (...) {  // the thread is cancelled while it waits
    running.fail("its thread was ended.");
    throw;
  }
}

std::string Communicator::failure() const {
  const std::string first = world_.stall_inspector().failure_of(id_);
  return first.empty() ? reason_of_own_failure() : first;
}

std::string Communicator::reason_of_own_failure() const {
  if (!gave_up_) return "";
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return own_failure_.empty() ? "it was given up, and there was no memory left for the reason."
                              : own_failure_;
}

// Does not wait for `mutex_`, because another thread may use the communicator for as long as its
// collective takes.
void Communicator::give_up(const std::string& why) noexcept {
  gave_up_ = true;
  try {
    const std::string reason = first_paragraph(why);
    {
      const std::lock_guard<std::mutex> lock(failure_mutex_);
      if (own_failure_.empty()) own_failure_ = reason;
    }
    world_.stall_inspector().announce_failure(id_, reason);
  } catch (const std::exception&) {
    return;  // no memory is left for the reason: the next call reports that
  }
}

void Communicator::idle() {
  const std::string& text = context_->fingerprint().text;
  if (user_idle_ && call_->is_interruptible) {
    const SignalHandlerScope scope(text);
    user_idle_();
  }
  world_.exit_protocol().check(id_, number_, text, topology());
  if (slow_ != number_) {
    slow_ = number_;
    slow_since_ = std::chrono::steady_clock::now();
  }
  world_.stall_inspector().check(id_, number_, text, slow_since_, call_->is_external);
}

std::unique_ptr<Communicator> open_communicator(World& world) {
  std::unique_ptr<Communicator> communicator;
  all_or_none(world.comm(), [&] { communicator = std::make_unique<Communicator>(world); });
  return communicator;
}

std::unique_ptr<Communicator> open_child(Communicator& parent, const std::string& what,
                                         size_t most_bytes) {
  World& world = parent.world();
  uninterruptible_barrier(parent, Fingerprint("the creation of " + what));
  std::unique_ptr<Communicator> child;
  all_or_none(world.comm(), [&] {
    child = std::make_unique<Communicator>(world, most_bytes);
    world.stall_inspector().add_child(child->id(), parent.id());
  });
  return child;
}

}  // namespace easyddl
