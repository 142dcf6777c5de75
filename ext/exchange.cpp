#include "exchange.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "check.h"
#include "trace.h"

namespace easyddl {
namespace {

// The exchanges of this process that are open, by their numbers. Never destroyed: threads of
// TensorFlow's may come here while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, Exchange*> open;
  int64_t last = 0;
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

int64_t enter(Exchange* exchange) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open[++all.last] = exchange;
  return all.last;
}

void leave(int64_t number) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open.erase(number);
}

void submit_to(int64_t exchange, size_t first, std::vector<Piece> arrays, Done done) {
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  const auto found = all.open.find(exchange);
  if (found == all.open.end()) {
    lock.unlock();
    return done("This step exchanges gradients for a fit that has ended. Compile it again.");
  }
  // Under the lock: the exchange cannot be closed meanwhile.
  found->second->submit(first, std::move(arrays), std::move(done));
}

std::atomic<uint64_t> g_exchanged_steps{0};

// Signals are the main thread's, where Python acts on them.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Exchange::Exchange(Channel& channel, std::string what, std::vector<Bucket> buckets)
    : channel_(channel),
      what_(std::move(what)),
      buckets_(std::move(buckets)),
      number_(enter(this)),
      waiting_(buckets_.size()) {
  thread_ = std::thread([this] {
    block_signals();
    run();
  });
}

Exchange::~Exchange() { close(); }

void Exchange::submit(size_t first, std::vector<Piece> arrays, Done done) {
  const int64_t handed_in = Trace::on() != nullptr ? Trace::now() : 0;
  std::unique_lock<std::mutex> lock(mutex_);
  std::string failure = failure_;
  if (first >= buckets_.size()) {
    failure = "There is no bucket " + std::to_string(first) + " in " + what_ + ".";
  }
  if (!failure.empty()) {
    lock.unlock();
    return done(failure);
  }
  waiting_[first].push_back({std::move(arrays), std::move(done), handed_in});
  if (first == next_) came_.notify_one();
}

void Exchange::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("exchange " + std::to_string(number_));
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    came_.wait(lock, [this] { return !failure_.empty() || !waiting_[next_].empty(); });
    if (!failure_.empty()) break;
    Request request = std::move(waiting_[next_].front());
    waiting_[next_].pop_front();
    lock.unlock();
    const std::string failure = reduce(std::move(request.arrays), request.handed_in);
    request.done(failure);
    lock.lock();
    if (failure_.empty()) failure_ = failure;
  }
  for (std::deque<Request>& requests : waiting_) {
    for (Request& request : std::exchange(requests, {})) {
      const std::string failure = failure_;
      lock.unlock();
      request.done(failure);
      lock.lock();
    }
  }
}

// Reduces the arrays of whole buckets, from `next_` on. Returns why it could not.
std::string Exchange::reduce(std::vector<Piece> arrays, int64_t handed_in) {
  try {
    auto array = arrays.begin();
    do {
      const size_t count = buckets_[next_].bytes.size();
      if (static_cast<size_t>(arrays.end() - array) < count) {
        throw Error("Too few arrays for bucket " + std::to_string(next_) + " of " + what_ + ".");
      }
      const auto end = array + static_cast<std::ptrdiff_t>(count);
      reduce_bucket(std::vector<Piece>(array, end), handed_in);
      array = end;
    } while (array != arrays.end());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void Exchange::reduce_bucket(std::vector<Piece> arrays, int64_t handed_in) {
  const Bucket& bucket = buckets_[next_];
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].bytes == bucket.bytes[i]) continue;
    throw Error("Array " + std::to_string(i) + " of bucket " + std::to_string(next_) + " of " +
                what_ + " has " + std::to_string(arrays[i].bytes) + " bytes where " +
                std::to_string(bucket.bytes[i]) + " were registered.");
  }
  const Signature signature("bucket " + std::to_string(next_ + 1) + " of " +
                            std::to_string(buckets_.size()) + " in step " + std::to_string(step_) +
                            " of " + what_);
  const Pieces pieces(std::move(arrays));
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  channel_.allreduce(pieces, bucket.dtype, Op::mean, signature);
  if (handed_in != 0) trace_bucket(pieces.bytes(), handed_in, begun);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (++next_ < buckets_.size()) return;
  next_ = 0;
  ++step_;
  g_exchanged_steps.fetch_add(1);
}

void Exchange::trace_bucket(size_t bytes, int64_t handed_in, int64_t begun) {
  Trace::on()->add("bucket", handed_in, Trace::now(),
                   {{"exchange", number_},
                    {"step", static_cast<int64_t>(step_)},
                    {"bucket", static_cast<int64_t>(next_)},
                    {"buckets", static_cast<int64_t>(buckets_.size())},
                    {"bytes", static_cast<int64_t>(bytes)},
                    {"begun", begun}});
}

void Exchange::close() {
  leave(number_);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = "This is the end of " + what_ + ": nothing can follow it.";
    came_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
}

bool Exchange::is_sound() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_ == 0 && !channel_.is_broken();
}

const ExchangeDoor& exchange_door() {
  static const ExchangeDoor door{submit_to};
  return door;
}

uint64_t exchanged_steps() { return g_exchanged_steps.load(); }

}  // namespace easyddl
