// A sequence of collectives over all ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "collectives/collective_context.h"
#include "collectives/fingerprint.h"
#include "common/wait.h"
#include "runtime/world.h"

namespace easyddl {

// One call of a collective.
struct CollectiveCall {
  const char* name;  // in the timeline
  size_t bytes;      // in the timeline
  const Fingerprint& fingerprint;
  bool is_interruptible = true;  // whether a signal may end this rank's wait in it
  // Whether its data is not reduced by the communicator's levels but, for example, by NCCL. Then
  // the ranks' fingerprints are not compared.
  bool is_external = false;
};

// All ranks call the same collectives of a communicator in the same order. Each communicator has
// its own shared memory, message tags and id, so that collectives of different communicators never
// wait for each other. It does not create an MPI communicator: MPI supports only some thousands of
// these, and all ranks must create one together.
//
// The class serializes the threads of this rank, counts the collectives, and keeps the first
// failure. The collectives are functions, one in a pair of files: allreduce.h, broadcast.h,
// barrier.h, all_gather.h, all_to_all.h and reduce_scatter.h.
//
// A collective that fails part-way breaks the communicator, because the phases of the ranks no
// longer match. Every later call fails at once, on all ranks, with the first error.
class Communicator {
 public:
  // Collective over the world. `most_bytes` is the expected size of the largest allreduce or
  // broadcast. Longer data takes more chunks.
  explicit Communicator(World& world, size_t most_bytes = SIZE_MAX);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Frees this rank's memory, unless a thread is in a collective. Every later call fails. Memory to
  // which MPI may still write is kept for as long as the process lives.
  void close();

  // `idle` is called from time to time while a rank waits; it may throw.
  void set_idle(Idle idle) { user_idle_ = std::move(idle); }

  // Runs a collective, which `body` implements. Another thread of this rank that calls a collective
  // waits meanwhile. Throws an Error if a signal handler calls it, or if the communicator is
  // broken. If `body` throws anything but a CollectiveError, the communicator is broken from then
  // on.
  void run(const CollectiveCall& call, const std::function<void(CollectiveContext&)>& body);

  // Breaks the communicator and its children on all ranks, because this rank leaves a collective
  // that the others may be in. It does so even if no memory is left for the reason.
  void give_up(const std::string& why) noexcept;

  // Returns why the communicator cannot be used any more, as far as this rank knows; empty if it
  // can.
  std::string failure() const;

  const Topology& topology() const { return world_.topology(); }
  int size() const { return topology().size; }
  World& world() const { return world_; }
  size_t id() const { return id_; }

 private:
  class ThreadLock;
  class RunningCall;

  std::string reason_of_own_failure() const;
  void idle();

  World& world_;
  const size_t id_;                             // the same on all ranks, and never used again
  std::unique_ptr<CollectiveContext> context_;  // null if it is closed
  std::mutex mutex_;                            // guards `is_in_use_` and the end of `context_`
  std::condition_variable is_free_;
  bool is_in_use_ = false;  // a thread of this rank is in a collective
  Idle user_idle_;
  const CollectiveCall* call_ = nullptr;  // the collective in progress, and its number
  uint64_t number_ = 0;
  uint64_t slow_ = 0;  // the last collective in which this rank waited for long, and since when
  std::chrono::steady_clock::time_point slow_since_;
  mutable std::mutex failure_mutex_;
  std::string own_failure_;           // why this rank has broken the communicator
  std::atomic<bool> gave_up_{false};  // set before the reason, for which no memory may be left
};

// Collective over the world. If any rank fails to create the communicator, all ranks throw.
std::unique_ptr<Communicator> open_communicator(World& world);

// The same for a communicator that breaks when `parent` breaks. `what` describes its use, and is
// the same on all ranks.
std::unique_ptr<Communicator> open_child(Communicator& parent, const std::string& what,
                                         size_t most_bytes = SIZE_MAX);

}  // namespace easyddl
