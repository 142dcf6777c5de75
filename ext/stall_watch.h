// Deadlines: names the ranks that do not come, and says where they stand.
#pragma once

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

#include "farewell.h"
#include "layout.h"

namespace easyddl {

// In seconds; 0 means never.
struct Deadlines {
  double warn;   // until a rank that waits asks the others where they stand, and says so
  double abort;  // until it fails
};

// A rank that has waited for long asks all others. A thread of each rank answers, whatever the
// other threads do: whether it has come, what it does, what it waits in itself, and where its
// script stands. A rank that does not answer is stopped, or cannot be reached.
class StallWatch {
 public:
  // Collective over `world`.
  StallWatch(MPI_Comm world, const Layout& layout, Farewell& farewell, Deadlines deadlines);
  ~StallWatch();

  // What says where this rank's script stands. It may take long.
  void set_stack(std::function<std::string()> stack);

  // What this rank does that may take long, and is no reason to call it late; empty for nothing.
  void set_activity(std::string activity);

  // Called now and then by a thread that has waited since `since` in collective `number` of
  // `channel`, which `what` describes. Throws an Error once the ranks have parted ways, or the
  // others are too late; and, `if_all_have_come`, if it takes as long though they have come.
  void check(size_t channel, uint64_t number, const std::string& what,
             std::chrono::steady_clock::time_point since, bool if_all_have_come);

  // The wait in `channel` is over.
  void forget(size_t channel);

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
  void send(int to, const Message& message);
  void ask_all();
  Message answer_to(const Message& question);
  void send_stacks(std::unique_lock<std::mutex>& lock);
  void free_sent();
  bool is_time_to_ask(const Inquiry& inquiry, double seconds) const;
  bool all_have_answered(const Inquiry& inquiry) const;
  std::string describe(const Inquiry& inquiry, const std::string& what, double seconds) const;
  bool has_parted(const Inquiry& inquiry) const;
  bool is_excused(const Inquiry& inquiry) const;
  bool have_all_come(const Inquiry& inquiry) const;
  bool is_spokesman(const Inquiry& inquiry) const;
  std::string name(size_t rank) const;

  Comm comm_;
  const Layout& layout_;
  Farewell& farewell_;
  const Deadlines deadlines_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopped_ = false;
  std::string activity_;
  std::function<std::string()> stack_;
  std::map<size_t, Wait> waits_;         // by channel
  std::map<size_t, Inquiry> inquiries_;  // by channel
  std::vector<std::pair<int, Message>> want_stack_;
  std::vector<std::unique_ptr<Sending>> sendings_;
};

}  // namespace easyddl
