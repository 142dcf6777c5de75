// The gradients of one optimizer on their way over all ranks, step after step.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "channel.h"
#include "control_word.h"
#include "dtype.h"
#include "exchange_door.h"
#include "gpu_level.h"
#include "pieces.h"
#include "stream_order.h"

namespace easyddl {

// Arrays of one dtype that travel together.
struct Bucket {
  DType dtype;
  std::vector<size_t> bytes;  // of each array
};

// Called once for a request, on the exchange's thread: `error` says why the arrays do not hold
// the result, and is empty where they do.
using Done = std::function<void(const std::string& error)>;

// What a rank has learnt of the others from the control words of the steps.
struct Seen {
  uint64_t missed = 0;  // steps that others took while this rank had no batch
  // The first step, counted from 1 since `forget`, in which any rank had none while others did,
  // and in which any has asked all to stop. The same on all ranks; 0 for none yet. A rank may
  // hand in steps before it has heard of the one before: it goes by which step told, not by when
  // it heard.
  uint64_t uneven = 0;
  uint64_t stop = 0;
};

// A list of gradients, cut into buckets that are averaged over all ranks, in a fixed order, by a
// thread of their own while the backward pass computes the next ones. All ranks hand in each
// bucket once a step; nothing is negotiated, since the order says whose turn it is.
//
// A rank's gradient is that of a mean over its batch. So the mean over the ranks is weighted, by
// what each rank's mean was divided by: then it is the gradient of the mean over all batches.
// Every rank scales its own by its weight over the usual one, which all know from the step before;
// the sum is divided by that of the weights, which came with it. Where batches are alike
// neither is needed, and nothing is scaled.
//
// A rank that has no more batches joins: its thread takes part with zeros, and with no weight,
// until all have joined.
class Exchange {
 public:
  // `channel` is this exchange's alone until `close`. All ranks must pass the same `what` (for
  // errors), the same buckets, and the same `op`: the weighted mean, or the sum, which knows no
  // weights.
  Exchange(Channel& channel, std::string what, std::vector<Bucket> buckets, Op op = Op::mean);
  ~Exchange();
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // By this number other libraries of the process find the exchange.
  int64_t number() const { return number_; }

  // Hands in the arrays of one or more whole buckets, from bucket `first` on. In whatever order
  // threads come here, buckets travel in theirs. `weight` is that of this rank's batch in the
  // step, or kPlain; that of the first bucket counts.
  void submit(size_t first, std::vector<Piece> arrays, double weight, Done done);

  // The same for arrays on a GPU: see ExchangeDoor. Either all ranks hand in such, or none does.
  std::string submit_on_gpu(size_t first, std::vector<Piece> arrays, const float* gpu_weight,
                            double weight, void* stream, const Done& done);

  // From now on this rank has no batches. Steps that are handed in already are taken first.
  void join();

  // Waits until all ranks have joined, and so none is joined any more. False if they have not
  // after some time.
  bool wait_for_all(std::chrono::milliseconds time);

  // Whether this rank asks all to stop, from its next step on.
  void ask_to_stop(bool stop);

  // For how long steps have stood still for it: from when the last array of a step was handed in
  // until all results were there. Nothing where they lie on GPUs: the host stands still for none.
  std::optional<std::chrono::nanoseconds> waited();

  // What the steps have told, since `forget`.
  Seen seen();
  void forget();

  // Fails what has been handed in and not yet begun, and ends the thread.
  void close();

  // Whether the channel can be used again after `close`.
  bool is_sound();

 private:
  struct Request {
    std::vector<Piece> arrays;
    double weight;
    Done done;
    int64_t handed_in;  // when, if that is traced
    // For arrays on a GPU.
    std::optional<StreamOrder::Ticket> ticket = std::nullopt;
    bool weighs_on_gpu = false;
  };

  // Where the arrays of all ranks lie: that is learnt before the first step.
  enum class Place { unknown, host, gpu };

  void run();
  bool has_any_request() const;
  std::string agree_on_place();
  std::string take(Request& request);
  std::string take_joined_step();
  void reduce(std::vector<Piece> arrays, int64_t handed_in);
  void begin_step(double weight, bool active);
  void agree_on_usual_weight();
  void check(const std::vector<Piece>& arrays) const;
  void weigh(std::vector<Piece>& arrays) const;
  void divide(const std::vector<Piece>& arrays) const;
  void travel(std::vector<Piece> arrays, int64_t handed_in);
  ControlWord exchange_control(const std::string& text);
  void take_in(const ControlWord& all);
  void end_bucket();
  std::string text_of_bucket() const;
  // In exchange_on_gpu.cpp.
  void prepare_gpu();
  GpuLoad load_of(size_t bucket) const;
  std::string refusal(size_t first, Place place) const;
  StreamOrder& order_for(size_t first, const std::vector<Piece>& arrays);
  void count_in(size_t arrays);
  void read_weight(Request& request);
  void reduce_on_gpu(const std::vector<Piece>& arrays, int64_t handed_in,
                     const StreamOrder::Ticket* ticket);
  void reduce_by_host(const std::vector<Piece>& arrays, int64_t handed_in,
                      const StreamOrder::Ticket* ticket);
  void finish_on_gpu(const StreamOrder::Ticket* ticket, const Idle& idle);
  void take_joined_bucket();
  [[noreturn]] void end_job_for(const std::string& failure) const;
  void let_go(const Request& request);
  void trace_bucket(size_t bytes, int64_t handed_in, int64_t begun);

  Channel& channel_;
  const std::string what_;
  const std::vector<Bucket> buckets_;
  const Op op_;
  const int64_t number_;
  std::mutex mutex_;
  std::condition_variable came_, all_joined_;
  std::vector<std::deque<Request>> waiting_;  // by their first bucket
  size_t next_ = 0;                           // the bucket whose turn it is
  uint64_t step_ = 0;
  bool joining_ = false;
  bool asks_to_stop_ = false;
  Seen seen_;
  uint64_t taken_ = 0;  // steps, since `forget`
  std::chrono::steady_clock::time_point last_handed_in_;
  std::chrono::nanoseconds waited_{0};
  std::string failure_;  // why nothing travels any more
  Place place_ = Place::unknown;
  std::condition_variable place_known_;
  StreamOrder* order_ = nullptr;  // borrowed, once this rank has handed in arrays on a GPU
  size_t next_on_gpu_ = 0;        // the bucket to be handed in next, on a GPU
  GpuLevel* gpu_ = nullptr;       // the channel's, if the arrays lie on GPUs
  // Of the step under way, the thread's own.
  ControlWord mine_;
  double usual_weight_ = 0;       // all ranks' mean in the step before; 0 if there was none
  double share_ = 1;              // by what this rank's gradients are multiplied
  double divisor_ = 1;            // by what the mean over the ranks is divided
  bool step_has_batches_ = true;  // whether any rank has one
  std::thread thread_;
};

// Leads to the exchanges of this process that are open. Never destroyed.
const ExchangeDoor& exchange_door();

// How many steps of gradients this process has exchanged.
uint64_t exchanged_steps();

}  // namespace easyddl
