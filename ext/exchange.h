// The gradients of one optimizer on their way over all ranks, step after step.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel.h"
#include "dtype.h"
#include "exchange_door.h"
#include "pieces.h"

namespace easyddl {

// Arrays of one dtype that travel together.
struct Bucket {
  DType dtype;
  std::vector<size_t> bytes;  // of each array
};

// Called once for a request, on the exchange's thread: `error` says why the arrays do not hold
// the result, and is empty where they do.
using Done = std::function<void(const std::string& error)>;

// A list of gradients, cut into buckets that are averaged over all ranks, in a fixed order, by a
// thread of their own while the backward pass computes the next ones. All ranks hand in each
// bucket once a step; nothing is negotiated, since the order says whose turn it is.
class Exchange {
 public:
  // `channel` is this exchange's alone until `close`. All ranks must pass the same `what` (for
  // errors) and the same buckets.
  Exchange(Channel& channel, std::string what, std::vector<Bucket> buckets);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // By this number other libraries of the process find the exchange.
  int64_t number() const { return number_; }

  // Hands in the arrays of one or more whole buckets, from bucket `first` on. In whatever order
  // threads come here, buckets travel in theirs.
  void submit(size_t first, std::vector<Piece> arrays, Done done);

  // Fails what has been handed in and not yet begun, and ends the thread.
  void close();

  // Whether the channel can be used again after `close`.
  bool is_sound();

 private:
  struct Request {
    std::vector<Piece> arrays;
    Done done;
    int64_t handed_in;  // when, if that is traced
  };

  void run();
  std::string reduce(std::vector<Piece> arrays, int64_t handed_in);
  void reduce_bucket(std::vector<Piece> arrays, int64_t handed_in);
  void trace_bucket(size_t bytes, int64_t handed_in, int64_t begun);

  Channel& channel_;
  const std::string what_;
  const std::vector<Bucket> buckets_;
  const int64_t number_;
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::deque<Request>> waiting_;  // by their first bucket
  size_t next_ = 0;                           // the bucket whose turn it is
  uint64_t step_ = 0;
  std::string failure_;  // why nothing travels any more
  std::thread thread_;
};

// Leads to the exchanges of this process that are open. Never destroyed.
const ExchangeDoor& exchange_door();

// How many steps of gradients this process has exchanged.
uint64_t exchanged_steps();

}  // namespace easyddl
