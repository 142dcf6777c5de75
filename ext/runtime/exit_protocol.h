// The exit protocol: no rank waits for a rank that has already exited.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "mpi/mpi.h"
#include "runtime/topology.h"

namespace easyddl {

// A rank that waits in a collective for a rank that has already exited gets an error, instead of
// waiting forever:
//   - Each rank counts the collectives that it has begun on each communicator.
//   - A rank that has ended its script waits for the others to do so. If they are late, it sends
//     its counts to rank 0.
//   - A rank that waits in a collective asks rank 0 from time to time whether a rank has exited
//     without having begun that collective.
// If all ranks end together, no message is sent.
class ExitProtocol {
 public:
  // Not a communicator, but the number under which steps on GPUs are counted: see
  // GpuCompletionMonitor.
  static constexpr size_t kGpus = SIZE_MAX;

  // Collective over `world`. Must live as long as the process: MPI may still read its messages.
  explicit ExitProtocol(MPI_Comm world);

  // Returns the number of a new communicator. Communicators must be created in the same order on
  // all ranks. Numbers are never reused.
  size_t add_communicator();

  // Records that this rank begins a collective on `communicator`, and returns the collective's
  // number, which counts from 1. Throws an Error once this rank has called `leave`.
  uint64_t begin(size_t communicator);

  // Records that the collective has ended, with success or not.
  void end(size_t communicator);

  // Records that this rank no longer waits on `communicator`. Its collective may still be in
  // progress.
  void end_wait(size_t communicator);

  // Returns how many collectives this rank has begun on `communicator`. A closed communicator keeps
  // its count, because other ranks may still wait in it.
  uint64_t begun(size_t communicator);

  // Called from time to time by a waiting thread. Throws an Error if a rank has left without having
  // begun collective `number` of `communicator`. `what` describes the collective.
  void check(size_t communicator, uint64_t number, const std::string& what,
             const Topology& topology);

  // Sends and receives the protocol's messages. Called from time to time, by one thread at a time,
  // until the end.
  void serve();

  // Waits until all ranks have called it, and until no thread of this rank is in a collective that
  // could call MPI later. Also compares `values`, of which each rank has as many as it likes, in
  // any order: returns for each value of rank 0 whether all ranks have it. Meanwhile calls
  // `serve_others` from time to time, which answers ranks that have not called it yet.
  std::vector<bool> leave(const std::vector<uint64_t>& values,
                          const std::function<void()>& serve_others);

 private:
  using Clock = std::chrono::steady_clock;
  using Words = std::vector<uint64_t>;

  // A wait of this rank that has lasted for some time.
  struct LongWait {
    uint64_t number = 0;
    Clock::time_point ask_at;
    int departed = -1;  // a rank that left without entering the collective; -1 for none
  };
  struct Outgoing {
    Words words;
    MPI_Request request;
  };
  // Of the ranks that have left, the one that has begun the fewest collectives.
  struct Fewest {
    uint64_t begun = UINT64_MAX;
    int rank = -1;
    void update(uint64_t other, int of);
  };

  void send(int to, int tag, Words words);
  bool receive_one();
  void record_counts(int from, const Words& words);
  int find_departed(size_t communicator, uint64_t number) const;
  void answer(size_t communicator, uint64_t number, int departed);
  std::vector<Words> counts_if_due();
  std::vector<Words> questions_due();
  std::vector<bool> find_common(const Words& values, size_t count);
  void flush_messages(const std::function<void()>& serve_others);
  static void complete(MPI_Request& request, Clock::time_point limit,
                       const std::function<void()>& serve_others);
  void wait_for_threads();

  MpiComm comm_;
  std::mutex mutex_;
  size_t next_ = 0;                              // the number of the next communicator
  std::unordered_map<size_t, uint64_t> counts_;  // by communicator
  std::map<size_t, LongWait> waits_;             // by communicator
  int in_progress_ = 0;                          // number of collectives in progress
  bool is_leaving_ = false, has_sent_counts_ = false, all_have_left_ = false;
  Clock::time_point leaving_since_;
  uint64_t count_ = 0, most_ = 0;  // of the values that are compared at the end

  // Used only by the thread that calls `serve`.
  std::deque<Outgoing> outgoing_;
  std::unordered_map<size_t, Fewest> fewest_;  // on rank 0: by communicator
  Fewest fewest_communicators_;                // on rank 0: of communicators created
};

}  // namespace easyddl
