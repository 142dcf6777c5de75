#include "reducer/reducer.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <numeric>
#include <utility>

#include "arrays/arithmetic.h"
#include "common/agreement.h"
#include "common/check.h"
#include "common/thread.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

std::atomic<uint64_t> g_reduced_steps{0};

// For how long what is closed in the midst of a step waits for the other ranks.
constexpr std::chrono::seconds kPatience{1};

// With the control word, which travels with the first bucket.
size_t most_bytes(const std::vector<Bucket>& buckets) {
  size_t most = 0;
  for (const Bucket& bucket : buckets) {
    most = std::max(most, std::accumulate(bucket.bytes.begin(), bucket.bytes.end(), size_t{0}));
  }
  return most + sizeof(ControlWord::Floats);
}

size_t bytes_of(const std::vector<Rows>& rows) {
  size_t bytes = 0;
  for (const Rows& each : rows) bytes += each.count * sizeof(int64_t) + each.bytes;
  return bytes;
}

// What an act's error says; empty if there is none.
template <class Act>
std::string why_not(Act act) {
  try {
    act();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

Reducer::Reducer(World& world, std::string what, std::vector<Bucket> buckets, Op op,
                 std::vector<Table> tables)
    : what_(std::move(what)),
      buckets_(std::move(buckets)),
      op_(op),
      rows_(std::move(tables)),
      owned_communicator_(Communicator::open(world, most_bytes(buckets_))),
      communicator_(*owned_communicator_),
      registration_(*this),
      waiting_(num_buckets()) {
  try {
    all_or_none(world.comm(), [this] {
      thread_ = start_thread("easyddl grads", "that exchanges gradients", [this] { run(); });
    });
  } catch (...) {
    close();
    throw;
  }
}

Reducer::~Reducer() { close(); }

void Reducer::submit(size_t first, std::vector<Segment> arrays, double weight, Done done) {
  hand_in(first, {std::move(arrays), weight, std::move(done), 0, {}, {}});
}

void Reducer::submit_rows(std::vector<Rows> rows, double weight, MakeRoom make_room, Done done) {
  hand_in(buckets_.size(), {{}, weight, std::move(done), 0, std::move(rows), std::move(make_room)});
}

void Reducer::hand_in(size_t first, Request request) {
  if (Trace::on() != nullptr) request.handed_in = Trace::now();
  std::unique_lock<std::mutex> lock(mutex_);
  const std::string failure = refusal(first, Place::host);
  if (!failure.empty()) {
    lock.unlock();
    return request.done(failure);
  }
  waiting_[first].push_back(std::move(request));
  last_handed_in_ = std::chrono::steady_clock::now();
  if (first == next_) came_.notify_one();
}

// Why arrays that lie there cannot be handed in; empty if they can.
std::string Reducer::refusal(size_t first, Place place) const {
  if (!failure_.empty()) return failure_;
  if (first >= num_buckets()) {
    return "There is no bucket " + std::to_string(first) + " in " + what_ + ".";
  }
  if (place_ == Place::unknown || place_ == place) return "";
  return std::string("The arrays of ") + what_ + " lay on " +
         (place_ == Place::gpu ? "GPUs" : "the hosts") +
         " in its first step, and now do not. They must stay there.";
}

void Reducer::join() {
  const std::lock_guard<std::mutex> lock(mutex_);
  joined_.join();
  came_.notify_one();
}

bool Reducer::wait_for_all(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  all_joined_.wait_for(lock, time, [this] { return !joined_.is_joining() || !failure_.empty(); });
  if (!failure_.empty()) throw Error(failure_);
  return !joined_.is_joining();
}

void Reducer::give_up(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = why;
    came_.notify_one();
    all_joined_.notify_all();
  }
  communicator_.give_up(why);
}

void Reducer::ask_to_stop(bool stop) {
  const std::lock_guard<std::mutex> lock(mutex_);
  joined_.ask_to_stop(stop);
}

std::optional<std::chrono::nanoseconds> Reducer::waited() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (place_ == Place::gpu) return std::nullopt;
  return waited_;
}

std::pair<uint64_t, std::vector<uint64_t>> Reducer::gathered() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {step_, rows_.gathered()};
}

JoinSummary Reducer::join_summary() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return joined_.summary();
}

void Reducer::forget() {
  const std::lock_guard<std::mutex> lock(mutex_);
  joined_.forget();
}

void Reducer::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("exchange " + std::to_string(number()));
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto has_batch = [this] { return !waiting_[next_].empty(); };
    const auto can_join = [this] {
      return joined_.is_joining() && next_ == 0 && want_to_drive_ == 0;
    };
    came_.wait(lock,
               [&] { return !failure_.empty() || (!is_driven_ && (has_batch() || can_join())); });
    if (!failure_.empty()) break;
    std::string failure;
    is_driven_ = true;
    if (place_ == Place::unknown) {
      const Place mine = has_batch() ? Place::host : Place::unknown;
      lock.unlock();
      failure = why_not([&] { agree_on_place(mine, std::nullopt); });
      // All ranks have joined, and so all go on to the step that says so.
      if (failure.empty() && place_ == Place::unknown) failure = take_joined_step();
    } else if (has_batch()) {
      Request request = std::move(waiting_[next_].front());
      waiting_[next_].pop_front();
      lock.unlock();
      failure = take(request);
      request.done(failure);
    } else {
      lock.unlock();
      failure = take_joined_step();
    }
    // The other ranks would wait for this one.
    if (!failure.empty()) communicator_.give_up(failure);
    lock.lock();
    is_driven_ = false;
    if (failure_.empty()) failure_ = failure;
    undriven_.notify_all();
  }
  undriven_.notify_all();
  all_joined_.notify_all();
  for (std::deque<Request>& requests : waiting_) {
    for (Request& request : std::exchange(requests, {})) {
      const std::string failure = failure_;
      lock.unlock();
      request.done(failure);
      lock.lock();
    }
  }
}

// Where the arrays lie, which a rank that has none must know too. Once in a reducer. With it a
// rank whose arrays lie on a GPU tells which turn it has claimed.
void Reducer::agree_on_place(Place mine, std::optional<int> gpu) {
  constexpr int64_t kPlaces = 4;
  const uint64_t position =
      mine == Place::gpu ? GpuCommunicator::of(communicator_.world()).step_order().claim(owner())
                         : 0;
  const std::vector<int64_t> all = communicator_.gather_values(
      static_cast<int64_t>(mine) + kPlaces * static_cast<int64_t>(position),
      Fingerprint("the first step of " + what_));
  const auto first_with = [&](Place place) {
    return std::find_if(all.begin(), all.end(), [&](int64_t each) {
      return each % kPlaces == static_cast<int64_t>(place);
    });
  };
  const auto on_host = first_with(Place::host), on_gpu = first_with(Place::gpu);
  if (on_host != all.end() && on_gpu != all.end()) {
    throw Error(communicator_.topology().capitalized_name_of(on_gpu - all.begin()) +
                " hands in arrays that lie on a GPU, " +
                communicator_.topology().capitalized_name_of(on_host - all.begin()) +
                " arrays that lie on the host, in the first step of " + what_ +
                ". All ranks must train on the same kind of device.");
  }
  if (on_gpu != all.end()) {
    std::vector<int64_t> step_order;
    for (int64_t each : all) {
      if (each % kPlaces == static_cast<int64_t>(Place::gpu)) step_order.push_back(each / kPlaces);
    }
    prepare_gpu(step_order, gpu, mine == Place::gpu ? &position : nullptr);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (on_gpu != all.end()) place_ = Place::gpu;
  if (on_host != all.end()) place_ = Place::host;
}

// Reduces the arrays of whole buckets, from `next_` on. Returns why it could not.
std::string Reducer::take(Request& request) {
  return why_not([&] {
    if (are_rows_next()) {
      rows_.check(request.rows);
      if (next_ == 0) begin_step(request.weight, true);
      return gather_rows(&request);
    }
    auto array = request.arrays.begin();
    do {
      if (are_rows_next()) throw Error("Too many arrays for " + what_ + ".");
      const size_t count = buckets_[next_].bytes.size();
      if (static_cast<size_t>(request.arrays.end() - array) < count) {
        throw Error("Too few arrays for bucket " + std::to_string(next_) + " of " + what_ + ".");
      }
      if (next_ == 0) begin_step(request.weight, true);
      const auto end = array + static_cast<std::ptrdiff_t>(count);
      reduce({array, end}, request.handed_in);
      array = end;
    } while (array != request.arrays.end());
  });
}

// Takes part in a step of the other ranks with zeros, or learns that all have joined.
std::string Reducer::take_joined_step() {
  return why_not([this] {
    if (gpu_ != nullptr) return take_joined_step_on_gpu();
    begin_step(0, false);
    do {
      if (are_rows_next()) {
        gather_rows(nullptr);
        continue;
      }
      std::vector<std::vector<uint8_t>> zeros;
      std::vector<Segment> arrays;
      for (size_t bytes : buckets_[next_].bytes) {
        uint8_t* data = zeros.emplace_back(bytes).data();
        arrays.push_back({data, data, bytes});
      }
      reduce(std::move(arrays), 0);
    } while (next_ != 0);
  });
}

void Reducer::begin_step(double weight, bool active) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    mine_ = joined_.word(weight, active);
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
void Reducer::agree_on_usual_weight() {
  const ControlWord all = exchange_control("the first weights of " + what_);
  if (all.any_active() && all.weight > 0) usual_weight_ = all.weight / all.active;
}

// One control word alone.
ControlWord Reducer::exchange_control(const std::string& text) {
  ControlWord::Floats floats = mine_.to_floats();
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  communicator_.allreduce(SegmentList({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
                          Fingerprint(text));
  return ControlWord::from_floats(floats, 1);
}

void Reducer::reduce(std::vector<Segment> arrays, int64_t handed_in) {
  check(arrays);
  weigh(arrays);
  travel(arrays, handed_in);
  if (!step_has_batches_) return;  // all have joined: there was no step
  divide(arrays);
  end_bucket();
}

// All ranks' rows, for the request of this one; null if it has no batch. The control word has told
// all weights by then, so that rows need be multiplied but once.
void Reducer::gather_rows(const Request* request) {
  const std::string text = text_of_bucket();
  if (next_ == 0) {
    take_in(exchange_control("the control word of " + text));
    if (!step_has_batches_) return;
  }
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  const double factor = op_ == Op::mean ? share_ / divisor_ / communicator_.size() : 1;
  if (request == nullptr) {
    rows_.run(communicator_, {}, 0, {}, Fingerprint(text));
  } else {
    rows_.run(communicator_, request->rows, factor, request->make_room, Fingerprint(text));
    if (request->handed_in != 0) bucket_trace(bytes_of(request->rows), request->handed_in, begun)();
  }
  end_bucket();
}

void Reducer::check(const std::vector<Segment>& arrays) const {
  const Bucket& bucket = buckets_[next_];
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].bytes == bucket.bytes[i]) continue;
    throw Error("Array " + std::to_string(i) + " of bucket " + std::to_string(next_) + " of " +
                what_ + " has " + std::to_string(arrays[i].bytes) + " bytes where " +
                std::to_string(bucket.bytes[i]) + " were registered.");
  }
}

void Reducer::weigh(std::vector<Segment>& arrays) const {
  if (share_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (Segment& array : arrays) {
    scale(array.out, array.in, array.bytes / size_of(dtype), dtype, share_);
    array.in = array.out;
  }
}

void Reducer::divide(const std::vector<Segment>& arrays) const {
  if (divisor_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (const Segment& array : arrays) {
    scale(array.out, array.out, array.bytes / size_of(dtype), dtype, 1 / divisor_);
  }
}

std::string Reducer::text_of_bucket() const {
  return "bucket " + std::to_string(next_ + 1) + " of " + std::to_string(num_buckets()) +
         " in step " + std::to_string(step_) + " of " + what_;
}

void Reducer::travel(std::vector<Segment> arrays, int64_t handed_in) {
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
  const SegmentList segments(std::move(arrays));
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  communicator_.allreduce(segments, bucket.dtype, op_, Fingerprint(text));
  if (rides) {
    const int ranks = communicator_.size();
    take_in(ControlWord::from_floats(floats, op_ == Op::mean ? ranks : 1));
  }
  if (handed_in != 0) bucket_trace(segments.bytes(), handed_in, begun)();
}

void Reducer::take_in(const ControlWord& all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_has_batches_ = joined_.take_in(all, mine_.active != 0, communicator_.size());
  if (!step_has_batches_) return all_joined_.notify_all();
  divisor_ = 1;
  if (op_ != Op::mean || all.weight <= 0) return;
  if (!all.any_plain()) divisor_ = all.weight / communicator_.size() / usual_weight_;
  usual_weight_ = all.weight / all.active;
}

void Reducer::end_bucket() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (++next_ < num_buckets()) return;
  next_ = 0;
  ++step_;
  joined_.end_step();
  if (mine_.active != 0 && place_ == Place::host) {
    waited_ += std::chrono::steady_clock::now() - last_handed_in_;
  }
  if (op_ == Op::mean) g_reduced_steps.fetch_add(1);
}

// To be called once a bucket is done, which is the next one now.
std::function<void()> Reducer::bucket_trace(size_t bytes, int64_t handed_in, int64_t begun) const {
  const auto count = [](auto value) { return static_cast<int64_t>(value); };
  return [=, step = step_, bucket = next_, buckets = num_buckets(), reducer = number()] {
    Trace::on()->add("bucket", handed_in, Trace::now(),
                     {{"exchange", reducer},
                      {"step", count(step)},
                      {"bucket", count(bucket)},
                      {"buckets", count(buckets)},
                      {"bytes", count(bytes)},
                      {"begun", begun}});
  };
}

void Reducer::close() {
  registration_.close();
  bool is_half_way = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = "This is the end of " + what_ + ": nothing can follow it.";
    came_.notify_one();
    // A collective that is under way may come to its end, if the other ranks are but late.
    undriven_.wait_for(lock, kPatience, [this] { return !is_driven_; });
    is_half_way = is_driven_ || next_ != 0;
  }
  // After an error of this rank's alone others wait in the step, and would for long.
  if (is_half_way) communicator_.give_up(what_ + " was closed in the midst of a step.");
  if (thread_.joinable()) thread_.join();
  registration_.end();
  if (gpu_ != nullptr) {
    gpu_->watch().drain(number());
    gpu_->step_order().end(owner());  // of a step that has remained half-way
  }
  Communicator::retire(std::move(owned_communicator_));
}

uint64_t reduced_steps() { return g_reduced_steps.load(); }

}  // namespace easyddl
