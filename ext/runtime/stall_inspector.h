// Deadlines for waits: names the ranks that are late, and says where they stand.
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

#include "runtime/deadlines.h"
#include "runtime/exit_protocol.h"
#include "runtime/stall_inquiry.h"
#include "runtime/topology.h"

namespace easyddl {

// A rank that has waited for long asks all other ranks. On each rank a thread answers, whatever the
// other threads do: whether the rank has begun the collective, what it does, in what it waits
// itself, and where its script stands. A rank that does not answer is stopped or cannot be reached.
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
  // `communicator`, which `what` describes. Throws an Error if
  //   - a collective on the communicator has failed on any rank,
  //   - other ranks have not begun the collective within the deadline, or,
  //   - `if_all_have_come`, all ranks have begun it and it has not ended within the deadline.
  void check(size_t communicator, uint64_t number, const std::string& what,
             std::chrono::steady_clock::time_point since, bool if_all_have_come);

  // The wait in `communicator` is over.
  void forget(size_t communicator);

  // Tells all ranks that a collective on `communicator` has failed part-way, for this reason, so
  // that no other can follow it. Neither waits nor throws. The first failure of a communicator
  // counts.
  void announce_failure(size_t communicator, const std::string& reason) noexcept;

  // The first failure of `communicator` that this rank knows of, with the rank's name; empty for
  // none. Without any it costs nothing.
  std::string failure_of(size_t communicator) const;

  // The inspector's thread makes no call of MPI after this. Whoever calls it serves the others.
  void stop();

  // Answers the other ranks, and passes on what is due. To be called now and then after `stop`.
  void serve();

 private:
  using Clock = std::chrono::steady_clock;
  struct Wait;
  struct Outgoing;

  void run();
  void serve(std::unique_lock<std::mutex>& lock);
  void receive_all();
  void take(int from, const StallMessage& message);
  void send(int to, std::shared_ptr<const StallMessage> message);
  void send_to_all(const StallMessage& message);
  void ask_all();
  bool note_failure(size_t communicator, const std::string& text);
  void spread_failures();
  StallMessage answer_to(const StallMessage& question);
  void send_stacks(std::unique_lock<std::mutex>& lock);
  void free_sent();
  bool is_time_to_ask(const StallInquiry& inquiry, double seconds) const;
  double period() const;
  StallInquiry& inquire(size_t communicator, uint64_t number, Clock::time_point since,
                        double seconds);

  MpiComm comm_;
  const Topology& topology_;
  ExitProtocol& exit_protocol_;
  const Deadlines deadlines_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::string activity_;
  std::function<std::string()> stack_;
  std::map<size_t, Wait> waits_;              // by communicator
  std::map<size_t, StallInquiry> inquiries_;  // by communicator
  std::vector<std::pair<int, StallMessage>> want_stack_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  // Apart from the rest, so that nobody who announces or asks waits for a call of MPI.
  mutable std::mutex failures_mutex_;
  std::atomic<bool> any_failure_{false};
  std::map<size_t, std::string> failures_;  // by communicator
  std::vector<size_t> to_spread_;           // communicators whose failure others do not know
};

}  // namespace easyddl
