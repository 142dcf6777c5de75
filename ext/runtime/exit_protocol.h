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
// waiting for ever:
//   - Each rank counts the collectives that it has begun on each communicator.
//   - A rank that has ended its script waits for the others to do so. If they are late, it sends
//   its
//     counts to rank 0.
//   - A rank that waits in a collective asks rank 0 now and then whether a rank has exited without
//     having begun that collective.
// Where all ranks end together, no message is sent.
class ExitProtocol {
 public:
  // No communicator, but the steps on GPUs: see GpuCompletionMonitor.
  static constexpr size_t kGpus = SIZE_MAX;
  // No communicator either, but where all ranks come to make one: see World::meet.
  static constexpr size_t kMeetings = SIZE_MAX - 1;

  // Collective over `world`. Must live as long as the process: MPI may still read its messages.
  explicit ExitProtocol(MPI_Comm world);

  // The number of a new communicator. Communicators must be made in the same order on all ranks.
  // Numbers are never used again.
  size_t add_communicator();

  // Notes that this rank begins a collective on `communicator`; returns its number, from 1. Throws
  // an Error once this rank has begun to leave.
  uint64_t begin(size_t communicator);

  // That collective has ended, well or not.
  void end(size_t communicator);

  // Nobody waits on `communicator` any more, whose collectives may still be in progress.
  void forget(size_t communicator);

  // How many collectives this rank has begun on `communicator`. What is closed keeps its
  // count: other ranks may still wait in it.
  uint64_t begun(size_t communicator);

  // Called now and then by a thread that waits. Throws an Error if a rank has left without having
  // begun collective `number` of `communicator`. `what` says what this rank waits in.
  void check(size_t communicator, uint64_t number, const std::string& what,
             const Topology& topology);

  // Sends and receives what is due. Called now and then, by one thread at a time, until the end.
  void serve();

  // Waits until all ranks have come here, and until no thread of this one is in a collective that
  // could call MPI later. Returns whether all ranks passed `flag` true. Meanwhile it calls `others`
  // now and then, which answers ranks that have not come yet.
  bool leave(bool flag, const std::function<void()>& others);

 private:
  using Clock = std::chrono::steady_clock;
  using Words = std::vector<uint64_t>;

  // A wait of this rank, once it has lasted for a while.
  struct LongWait {
    uint64_t number = 0;
    Clock::time_point ask_at;
    int gone = -1;  // a rank that will not come
  };
  struct Outgoing {
    Words words;
    MPI_Request request;
  };
  // The rank that has begun the fewest collectives of those that have left.
  struct Fewest {
    uint64_t begun = UINT64_MAX;
    int rank = -1;
    void take_in(uint64_t other, int of);
  };

  void send(int to, int tag, Words words);
  bool receive_one();
  void take_in_counts(int from, const Words& words);
  int gone_before(size_t communicator, uint64_t number) const;
  void answer(size_t communicator, uint64_t number, int gone);
  std::vector<Words> counts_if_due();
  std::vector<Words> questions_due();
  void wait_for_others_to_hear(const std::function<void()>& others);
  static void complete(MPI_Request& request, Clock::time_point limit,
                       const std::function<void()>& others);
  void wait_for_threads();

  MpiComm comm_;
  std::mutex mutex_;
  size_t next_ = 0;                              // the number of the next communicator
  std::unordered_map<size_t, uint64_t> counts_;  // by communicator
  std::map<size_t, LongWait> waits_;             // by communicator
  int under_way_ = 0;                            // collectives that have begun and not ended
  bool leaves_ = false, has_told_ = false, all_have_left_ = false;
  Clock::time_point leaves_since_;
  int flag_ = 0, all_flags_ = 0;

  // Of whoever calls `serve`.
  std::deque<Outgoing> outgoing_;
  std::unordered_map<size_t, Fewest> fewest_;  // on rank 0: by communicator
  Fewest fewest_communicators_;                // on rank 0: of communicators made
};

}  // namespace easyddl
