// Deadlines: names the ranks that do not come, and says where they stand.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "runtime/exit_protocol.h"
#include "runtime/topology.h"

namespace easyddl {

// In seconds; 0 means never.
struct Deadlines {
  double warn;   // until a rank that waits asks the others where they stand, and says so
  double abort;  // until it fails
};

// Seconds in words, without a fraction.
std::string rounded(double seconds);

// A rank that has waited for long asks all others. A thread of each rank answers, whatever the
// other threads do: whether it has come, what it does, what it waits in itself, and where its
// script stands. A rank that does not answer is stopped, or cannot be reached.
class StallInspector {
 public:
  // Collective over `world`.
  StallInspector(MPI_Comm world, const Topology& topology, ExitProtocol& exit_protocol,
                 Deadlines deadlines);
  ~StallInspector();

  // What says where this rank's script stands. It may take long.
  void set_stack(std::function<std::string()> stack);

  // What this rank does that may take long, and is no reason to call it late; empty for nothing.
  void set_activity(std::string activity);

  // Called now and then by a thread that has waited since `since` in collective `number` of
  // `communicator`, which `what` describes. Throws an Error once the others are too late; and,
  // `if_all_have_come`, if it takes as long though they have come; and with the failure of the
  // communicator, if it has one.
  void check(size_t communicator, uint64_t number, const std::string& what,
             std::chrono::steady_clock::time_point since, bool if_all_have_come);

  // The wait in `communicator` is over.
  void forget(size_t communicator);

  // A collective ended half-way, for this reason, so that no other can follow it on `communicator`:
  // has all ranks know. Neither waits nor throws. The first failure of a communicator is the one
  // that counts.
  void announce_failure(size_t communicator, const std::string& reason) noexcept;

  // The first failure of `communicator` that this rank knows of, with the rank's name; empty for
  // none. Without any it costs nothing.
  std::string failure_of(size_t communicator) const;

  // No MPI call is made after this.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Message;
  struct Wait;
  struct Inquiry;
  struct Sending;

  void run();
  void receive_all();
  void take(int from, const Message& message);
  void send(int to, std::shared_ptr<const Message> message);
  void send_to_all(const Message& message);
  void ask_all();
  bool note_failure(size_t communicator, const std::string& text);
  void spread_failures();
  Message answer_to(const Message& question);
  void send_stacks(std::unique_lock<std::mutex>& lock);
  void free_sent();
  bool is_time_to_ask(const Inquiry& inquiry, double seconds) const;
  double period() const;
  bool all_have_answered(const Inquiry& inquiry) const;
  std::string describe(const Inquiry& inquiry, const std::string& what, double seconds) const;
  bool has_parted(const Inquiry& inquiry, double seconds) const;
  bool is_excused(const Inquiry& inquiry) const;
  bool have_all_come(const Inquiry& inquiry) const;
  bool is_spokesman(const Inquiry& inquiry) const;

  MpiComm comm_;
  const Topology& topology_;
  ExitProtocol& exit_protocol_;
  const Deadlines deadlines_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::string activity_;
  std::function<std::string()> stack_;
  std::map<size_t, Wait> waits_;         // by communicator
  std::map<size_t, Inquiry> inquiries_;  // by communicator
  std::vector<std::pair<int, Message>> want_stack_;
  std::vector<std::unique_ptr<Sending>> sendings_;
  // Apart from the rest, so that nobody who announces or asks waits for a call of MPI.
  mutable std::mutex failures_mutex_;
  std::atomic<bool> any_failure_{false};
  std::map<size_t, std::string> failures_;  // by communicator
  std::vector<size_t> to_spread_;           // communicators whose failure others do not know
};

}  // namespace easyddl
