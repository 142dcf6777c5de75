// The common base of a reducer and of a sum within a step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "common/rank_name.h"
#include "reducer/join_state.h"
#include "reducer/registry.h"

namespace easyddl {

// Guarded by `mutex`.
struct ParticipantState {
  explicit ParticipantState(std::mutex& guard) : mutex(guard) {}

  std::mutex& mutex;
  std::string failure;  // the error of all later calls; empty for none
  JoinState join;
  std::condition_variable all_joined;
  std::chrono::nanoseconds blocked_time{0};
};

// Takes part in the steps of all ranks, until this rank has no more batches and joins.
class Participant : public Submittable {
 public:
  Participant(const Participant&) = delete;
  Participant& operator=(const Participant&) = delete;

  // The number by which other libraries of the process refer to the object.
  int64_t number() const { return registration_.number(); }

  // Declares that this rank has no more batches. Steps that it has submitted are reduced first.
  void join();

  // Waits until all ranks have joined, after which no rank counts as joined. Returns false if that
  // takes longer than `time`.
  bool wait_for_all(std::chrono::milliseconds time);

  // Sets whether this rank asks all ranks to stop, from its next step on.
  void ask_to_stop(bool stop);

  // Total time that steps were blocked on this object: from the submission of a step's last array
  // until all results were ready. Empty for GPU arrays, which never block the host.
  std::optional<std::chrono::nanoseconds> blocked_time();

  // What this rank has learned from the control words since `reset_join_state`.
  JoinSummary join_summary();
  void reset_join_state();

 protected:
  // `what` is for errors. The second constructor is for objects that share a mutex.
  explicit Participant(std::string what);
  Participant(std::string what, std::mutex& shared_mutex);
  ~Participant() override = default;

  const std::string& what() const { return what_; }
  ParticipantState& state() { return state_; }
  const ParticipantState& state() const { return state_; }
  Registration& registration() { return registration_; }

  // The error of everything that is submitted after the object was closed.
  std::string end_text() const {
    return capitalized(what_) + " has been closed, so this request cannot be completed.";
  }

 private:
  // Wakes the thread that runs the steps of a joined rank. Called with the mutex held.
  virtual void wake() = 0;
  // Called with the mutex held.
  virtual bool is_on_gpu() const = 0;

  const std::string what_;
  std::mutex own_mutex_;
  ParticipantState state_;
  Registration registration_;  // last, because it makes the object reachable
};

}  // namespace easyddl
