#include "exchange.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <utility>

#include "check.h"
#include "reduce.h"
#include "trace.h"

namespace easyddl {
namespace {

// The exchanges of this process that are open, by their numbers. Never destroyed: threads of
// TensorFlow's may come here while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, Exchange*> open;
  std::map<int64_t, int> visitors;  // threads that wait in it, by its number
  std::condition_variable visitor_left;
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

void wait_for_visitors(int64_t number) {
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.visitor_left.wait(lock, [&] { return all.visitors.count(number) == 0; });
}

constexpr const char* kEnded =
    "This step exchanges gradients for a fit that has ended. Compile it again.";

void submit_to(int64_t exchange, size_t first, std::vector<Piece> arrays, double weight,
               Done done) {
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  const auto found = all.open.find(exchange);
  if (found == all.open.end()) {
    lock.unlock();
    return done(kEnded);
  }
  // Under the lock: the exchange cannot be closed meanwhile.
  found->second->submit(first, std::move(arrays), weight, std::move(done));
}

// This may wait for other ranks. So not under the lock: the exchange is told of its visitor.
std::string submit_on_gpu_to(int64_t exchange, size_t first, std::vector<Piece> arrays,
                             const float* gpu_weight, double weight, void* stream, Done done) {
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  const auto found = all.open.find(exchange);
  if (found == all.open.end()) {
    lock.unlock();
    done(kEnded);
    return kEnded;
  }
  Exchange& open = *found->second;
  ++all.visitors[exchange];
  lock.unlock();
  const std::string refused =
      open.submit_on_gpu(first, std::move(arrays), gpu_weight, weight, stream, done);
  lock.lock();
  if (--all.visitors[exchange] == 0) all.visitors.erase(exchange);
  all.visitor_left.notify_all();
  return refused;
}

std::atomic<uint64_t> g_exchanged_steps{0};

// Signals are the main thread's, where Python acts on them.
void block_signals() {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
}

}  // namespace

Exchange::Exchange(Channel& channel, std::string what, std::vector<Bucket> buckets, Op op)
    : channel_(channel),
      what_(std::move(what)),
      buckets_(std::move(buckets)),
      op_(op),
      number_(enter(this)),
      waiting_(buckets_.size()) {
  thread_ = std::thread([this] {
    block_signals();
    run();
  });
}

Exchange::~Exchange() { close(); }

void Exchange::submit(size_t first, std::vector<Piece> arrays, double weight, Done done) {
  const int64_t handed_in = Trace::on() != nullptr ? Trace::now() : 0;
  std::unique_lock<std::mutex> lock(mutex_);
  const std::string failure = refusal(first, Place::host);
  if (!failure.empty()) {
    lock.unlock();
    return done(failure);
  }
  waiting_[first].push_back({std::move(arrays), weight, std::move(done), handed_in});
  last_handed_in_ = std::chrono::steady_clock::now();
  if (first == next_) came_.notify_one();
}

// Why arrays that lie there cannot be handed in; empty if they can.
std::string Exchange::refusal(size_t first, Place place) const {
  if (!failure_.empty()) return failure_;
  if (first >= buckets_.size()) {
    return "There is no bucket " + std::to_string(first) + " in " + what_ + ".";
  }
  if (place_ == Place::unknown || place_ == place) return "";
  return std::string("The arrays of ") + what_ + " lay on " +
         (place_ == Place::gpu ? "GPUs" : "the hosts") +
         " in its first step, and now do not. They must stay there.";
}

void Exchange::join() {
  const std::lock_guard<std::mutex> lock(mutex_);
  joining_ = true;
  came_.notify_one();
}

bool Exchange::wait_for_all(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  all_joined_.wait_for(lock, time, [this] { return !joining_ || !failure_.empty(); });
  if (!failure_.empty()) throw Error(failure_);
  return !joining_;
}

void Exchange::ask_to_stop(bool stop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  asks_to_stop_ = stop;
}

std::optional<std::chrono::nanoseconds> Exchange::waited() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (place_ == Place::gpu) return std::nullopt;
  return waited_;
}

Seen Exchange::seen() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return seen_;
}

void Exchange::forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  seen_ = {};
  taken_ = 0;
  asks_to_stop_ = false;
}

void Exchange::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("exchange " + std::to_string(number_));
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto has_batch = [this] { return !waiting_[next_].empty(); };
    // Whoever hands in arrays on a GPU waits for that, and may have others still to hand in.
    const auto can_ask = [this] {
      return place_ == Place::unknown && order_ != nullptr && has_any_request();
    };
    came_.wait(lock, [&] {
      return !failure_.empty() || has_batch() || (joining_ && next_ == 0) || can_ask();
    });
    if (!failure_.empty()) break;
    std::string failure;
    if (place_ == Place::unknown) {
      lock.unlock();
      failure = agree_on_place();
      // All ranks have joined, and so all go on to the step that says so.
      if (failure.empty() && place_ == Place::unknown) failure = take_joined_step();
    } else if (has_batch()) {
      Request request = std::move(waiting_[next_].front());
      waiting_[next_].pop_front();
      lock.unlock();
      failure = take(request);
      if (request.ticket && !failure.empty()) end_job_for(failure);
      let_go(request);
      request.done(failure);
    } else {
      lock.unlock();
      failure = take_joined_step();
    }
    lock.lock();
    if (failure_.empty()) failure_ = failure;
    place_known_.notify_all();
  }
  place_known_.notify_all();
  all_joined_.notify_all();
  for (std::deque<Request>& requests : waiting_) {
    for (Request& request : std::exchange(requests, {})) {
      const std::string failure = failure_;
      lock.unlock();
      let_go(request);
      request.done(failure);
      lock.lock();
    }
  }
}

bool Exchange::has_any_request() const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [](const std::deque<Request>& requests) { return !requests.empty(); });
}

// Where the arrays lie, which a rank that has none must know too. Once in an exchange.
std::string Exchange::agree_on_place() {
  try {
    Place mine = Place::unknown;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (has_any_request()) mine = order_ != nullptr ? Place::gpu : Place::host;
    }
    const std::vector<int64_t> all =
        channel_.gather_values(static_cast<int64_t>(mine), Signature("the first step of " + what_));
    const auto first_with = [&](Place place) {
      return std::find(all.begin(), all.end(), static_cast<int64_t>(place));
    };
    const auto host = first_with(Place::host), gpu = first_with(Place::gpu);
    if (host != all.end() && gpu != all.end()) {
      throw Error(channel_.name_of(static_cast<size_t>(gpu - all.begin())) +
                  " hands in arrays that lie on a GPU, " +
                  channel_.name_of(static_cast<size_t>(host - all.begin())) +
                  " arrays that lie on the host, in the first step of " + what_ +
                  ". All ranks must train on the same kind of device.");
    }
    if (gpu != all.end()) prepare_gpu();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (gpu != all.end()) place_ = Place::gpu;
    if (host != all.end()) place_ = Place::host;
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Reduces the arrays of whole buckets, from `next_` on. Returns why it could not.
std::string Exchange::take(Request& request) {
  try {
    auto array = request.arrays.begin();
    if (request.ticket) read_weight(request);
    do {
      const size_t count = buckets_[next_].bytes.size();
      if (static_cast<size_t>(request.arrays.end() - array) < count) {
        throw Error("Too few arrays for bucket " + std::to_string(next_) + " of " + what_ + ".");
      }
      if (next_ == 0) begin_step(request.weight, true);
      const auto end = array + static_cast<std::ptrdiff_t>(count);
      const std::vector<Piece> arrays(array, end);
      array = end;
      if (request.ticket) {
        const bool is_last = array == request.arrays.end();
        reduce_on_gpu(arrays, request.handed_in, is_last ? &*request.ticket : nullptr);
      } else {
        reduce(arrays, request.handed_in);
      }
    } while (array != request.arrays.end());
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

// Takes part in a step of the other ranks with zeros, or learns that all have joined.
std::string Exchange::take_joined_step() {
  try {
    begin_step(0, false);
    do {
      take_joined_bucket();
    } while (next_ != 0);
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

void Exchange::take_joined_bucket() {
  if (gpu_ != nullptr && gpu_->way_of(load_of(next_)) != GpuWay::host) {
    return reduce_on_gpu(gpu_->zeros(buckets_[next_].bytes), 0, nullptr);
  }
  std::vector<std::vector<uint8_t>> zeros;
  std::vector<Piece> arrays;
  for (size_t bytes : buckets_[next_].bytes) {
    uint8_t* data = zeros.emplace_back(bytes).data();
    arrays.push_back({data, data, bytes});
  }
  reduce(std::move(arrays), 0);
}

void Exchange::begin_step(double weight, bool active) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    mine_ = ControlWord::of(weight, active, asks_to_stop_);
  }
  if (op_ == Op::mean && usual_weight_ == 0) agree_on_usual_weight();
  share_ = 1;
  // Without a usual weight none of the ranks has any.
  if (op_ == Op::mean && active && mine_.plain == 0) {
    share_ = usual_weight_ > 0 ? mine_.weight / usual_weight_ : 0;
  }
}

// Before the first step only: later ones go by the one before. Scaling by the weights themselves
// could take a 16-bit gradient beyond its range.
void Exchange::agree_on_usual_weight() {
  const ControlWord all = exchange_control("the first weights of " + what_);
  if (all.any_active() && all.weight > 0) usual_weight_ = all.weight / all.active;
}

// One control word alone.
ControlWord Exchange::exchange_control(const std::string& text) {
  ControlWord::Floats floats = mine_.to_floats();
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  channel_.allreduce(Pieces({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
                     Signature(text));
  return ControlWord::from_floats(floats, 1);
}

void Exchange::reduce(std::vector<Piece> arrays, int64_t handed_in) {
  check(arrays);
  weigh(arrays);
  travel(arrays, handed_in);
  if (!step_has_batches_) return;  // all have joined: there was no step
  divide(arrays);
  end_bucket();
}

void Exchange::check(const std::vector<Piece>& arrays) const {
  const Bucket& bucket = buckets_[next_];
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].bytes == bucket.bytes[i]) continue;
    throw Error("Array " + std::to_string(i) + " of bucket " + std::to_string(next_) + " of " +
                what_ + " has " + std::to_string(arrays[i].bytes) + " bytes where " +
                std::to_string(bucket.bytes[i]) + " were registered.");
  }
}

void Exchange::weigh(std::vector<Piece>& arrays) const {
  if (share_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (Piece& array : arrays) {
    scale(array.out, array.in, array.bytes / size_of(dtype), dtype, share_);
    array.in = array.out;
  }
}

void Exchange::divide(const std::vector<Piece>& arrays) const {
  if (divisor_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (const Piece& array : arrays) {
    scale(array.out, array.out, array.bytes / size_of(dtype), dtype, 1 / divisor_);
  }
}

std::string Exchange::text_of_bucket() const {
  return "bucket " + std::to_string(next_ + 1) + " of " + std::to_string(buckets_.size()) +
         " in step " + std::to_string(step_) + " of " + what_;
}

void Exchange::travel(std::vector<Piece> arrays, int64_t handed_in) {
  const Bucket& bucket = buckets_[next_];
  const std::string text = text_of_bucket();
  // In the first bucket, if its elements can hold the control word; else before it.
  const bool rides = next_ == 0 && bucket.dtype == DType::float32;
  ControlWord::Floats floats = mine_.to_floats();
  if (rides) {
    auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
    arrays.push_back({bytes, bytes, sizeof floats});
  } else if (next_ == 0) {
    take_in(exchange_control("the control word of " + text));
    if (!step_has_batches_) return;
  }
  const Pieces pieces(std::move(arrays));
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  channel_.allreduce(pieces, bucket.dtype, op_, Signature(text));
  if (rides) {
    const int ranks = channel_.size();
    take_in(ControlWord::from_floats(floats, op_ == Op::mean ? ranks : 1));
  }
  if (handed_in != 0) trace_bucket(pieces.bytes(), handed_in, begun);
}

void Exchange::take_in(const ControlWord& all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_has_batches_ = all.any_active();
  if (all.any_stops() && seen_.stop == 0) seen_.stop = taken_ + 1;
  if (!step_has_batches_) {
    joining_ = false;
    all_joined_.notify_all();
    return;
  }
  if (mine_.active == 0) ++seen_.missed;
  if (!all.all_active(channel_.size()) && seen_.uneven == 0) seen_.uneven = taken_ + 1;
  divisor_ = 1;
  if (op_ != Op::mean || all.weight <= 0) return;
  if (!all.any_plain()) divisor_ = all.weight / channel_.size() / usual_weight_;
  usual_weight_ = all.weight / all.active;
}

void Exchange::end_bucket() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (++next_ < buckets_.size()) return;
  next_ = 0;
  ++step_;
  ++taken_;
  if (mine_.active != 0 && place_ == Place::host) {
    waited_ += std::chrono::steady_clock::now() - last_handed_in_;
  }
  if (op_ == Op::mean) g_exchanged_steps.fetch_add(1);
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
  wait_for_visitors(number_);
  if (order_ != nullptr) StreamOrder::give_back(std::exchange(order_, nullptr));
}

bool Exchange::is_sound() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return next_ == 0 && !channel_.is_broken();
}

const ExchangeDoor& exchange_door() {
  static const ExchangeDoor door{submit_to, submit_on_gpu_to};
  return door;
}

uint64_t exchanged_steps() { return g_exchanged_steps.load(); }

}  // namespace easyddl
