// Enforces deadlines for waits, and names the late ranks and the lines that their scripts have
// reached.
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

#include "common/running_time.h"
#include "runtime/deadlines.h"
#include "runtime/exit_protocol.h"
#include "runtime/stall_inquiry.h"
#include "runtime/topology.h"

namespace easyddl {

// A rank that has waited for long asks all other ranks. A thread of each rank answers, whatever its
// other threads do: whether the rank has begun the collective, its current activity, the collective
// in which it waits itself, and the stack of its script. A rank that does not answer is stopped or
// cannot be reached.
class StallInspector {
 public:
  // Collective over `world`.
  StallInspector(MPI_Comm world, const Topology& topology, ExitProtocol& exit_protocol,
                 Deadlines deadlines);
  ~StallInspector();

  // Sets the function that returns the stack of this rank's script. It may take long.
  void set_stack(std::function<std::string()> stack);

  // Sets this rank's current activity, which may take long and excuses it for being late; empty for
  // none.
  void set_activity(std::string activity);

  // Called from time to time by a thread that has waited since `since` in collective `number` of
  // `communicator`, which `what` describes. Throws an Error if
  //   - a collective on the communicator has failed on any rank,
  //   - other ranks have not begun the collective within the deadline, or,
  //   - `if_all_have_entered`, all ranks have begun it and it has not ended within the deadline.
  void check(size_t communicator, uint64_t number, const std::string& what,
             std::chrono::steady_clock::time_point since, bool if_all_have_entered);

  // Ends the wait in `communicator`.
  void end_wait(size_t communicator);

  // Reports to all ranks that a collective on `communicator` has failed part-way, which breaks the
  // communicator. Neither waits nor throws. Only the first failure of a communicator is reported.
  void announce_failure(size_t communicator, const std::string& reason) noexcept;

  // Makes failures of `parent` also failures of `child`, until `remove_child`.
  void add_child(size_t child, size_t parent);
  void remove_child(size_t child);

  // Returns the first known failure of `communicator`, of its parent, or of that one's parent and
  // so on, with the name of the rank; empty for none. Costs one atomic load while there are no
  // failures.
  std::string failure_of(size_t communicator) const;

  // Stops the inspector's thread, which then no longer calls MPI. The caller must call `serve`
  // instead.
  void stop();

  // Answers the other ranks, and sends this rank's messages. Must be called from time to time after
  // `stop`.
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
  bool record_failure(size_t communicator, const std::string& text);
  void send_failures();
  StallMessage answer_to(const StallMessage& question);
  void send_stacks(std::unique_lock<std::mutex>& lock);
  void free_sent();
  bool is_time_to_ask(const StallInquiry& inquiry, double seconds);
  double period() const;
  StallInquiry& inquire(size_t communicator, uint64_t number, Clock::time_point since,
                        double seconds);

  MpiComm comm_;
  const Topology& topology_;
  ExitProtocol& exit_protocol_;
  const Deadlines deadlines_;
  RunningTime time_;  // deadlines count only the time in which this process runs
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::string activity_;
  std::function<std::string()> stack_;
  std::map<size_t, Wait> waits_;              // by communicator
  std::map<size_t, StallInquiry> inquiries_;  // by communicator
  std::vector<std::pair<int, StallMessage>> stack_requests_;
  std::vector<std::unique_ptr<Outgoing>> outgoing_;
  // A separate mutex, so that a thread that announces a failure, or asks for one, never waits for
  // an MPI call.
  mutable std::mutex failures_mutex_;
  std::atomic<bool> any_failure_{false};
  std::map<size_t, std::string> failures_;  // by communicator
  std::map<size_t, size_t> parents_;        // by communicator
  std::vector<size_t> unsent_failures_;     // communicators whose failure was not sent yet
};

}  // namespace easyddl
