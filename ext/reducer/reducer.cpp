#include "reducer/reducer.h"

#include <algorithm>
#include <exception>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/thread.h"
#include "mpi/agreement.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

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
  const std::string failure = refusal(first, ArrayPlace::host);
  if (!failure.empty()) {
    lock.unlock();
    return request.done(failure);
  }
  waiting_[first].push_back(std::move(request));
  last_handed_in_ = std::chrono::steady_clock::now();
  if (first == next_) came_.notify_one();
}

// Why arrays that lie there cannot be submitted; empty if they can.
std::string Reducer::refusal(size_t first, ArrayPlace place) const {
  if (!failure_.empty()) return failure_;
  if (first >= num_buckets()) {
    return "There is no bucket " + std::to_string(first) + " in " + what_ + ".";
  }
  if (place_ == ArrayPlace::unknown || place_ == place) return "";
  return std::string("The arrays of ") + what_ + " lay on " +
         (place_ == ArrayPlace::gpu ? "GPUs" : "the hosts") +
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
  if (place_ == ArrayPlace::gpu) return std::nullopt;
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
    is_driven_ = true;
    const std::string failure = advance(lock);
    // The other ranks would wait for this one.
    if (!failure.empty()) communicator_.give_up(failure);
    lock.lock();
    is_driven_ = false;
    if (failure_.empty()) failure_ = failure;
    undriven_.notify_all();
  }
  undriven_.notify_all();
  all_joined_.notify_all();
  fail_waiting(lock);
}

// One bucket, or one step of the other ranks, without the lock. Returns why it failed; empty if it
// did not.
std::string Reducer::advance(std::unique_lock<std::mutex>& lock) {
  std::string failure;
  if (place_ == ArrayPlace::unknown) {
    const ArrayPlace mine = !waiting_[next_].empty() ? ArrayPlace::host : ArrayPlace::unknown;
    lock.unlock();
    failure = why_not([&] { agree_on_place(mine, std::nullopt); });
    // All ranks have joined, and so all go on to the step that says so.
    if (failure.empty() && place_ == ArrayPlace::unknown) failure = take_joined_step();
  } else if (!waiting_[next_].empty()) {
    Request request = std::move(waiting_[next_].front());
    waiting_[next_].pop_front();
    lock.unlock();
    failure = take(request);
    request.done(failure);
  } else {
    lock.unlock();
    failure = take_joined_step();
  }
  return failure;
}

// Tells all who have handed something in that nothing follows.
void Reducer::fail_waiting(std::unique_lock<std::mutex>& lock) {
  for (std::deque<Request>& requests : waiting_) {
    for (Request& request : std::exchange(requests, {})) {
      const std::string failure = failure_;
      lock.unlock();
      request.done(failure);
      lock.lock();
    }
  }
}

// Agrees, once in a reducer, whether the arrays lie on GPUs: a rank without arrays must know it
// too. A rank whose arrays lie on a GPU also sends the position in the step order that it has
// claimed.
void Reducer::agree_on_place(ArrayPlace mine, std::optional<int> gpu) {
  constexpr int64_t kPlaces = 4;
  const uint64_t position =
      mine == ArrayPlace::gpu
          ? GpuCommunicator::of(communicator_.world()).step_order().claim(owner())
          : 0;
  const std::vector<int64_t> all = communicator_.gather_values(
      static_cast<int64_t>(mine) + kPlaces * static_cast<int64_t>(position),
      Fingerprint("the first step of " + what_));
  const auto first_with = [&](ArrayPlace place) {
    return std::find_if(all.begin(), all.end(), [&](int64_t each) {
      return each % kPlaces == static_cast<int64_t>(place);
    });
  };
  const auto on_host = first_with(ArrayPlace::host), on_gpu = first_with(ArrayPlace::gpu);
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
      if (each % kPlaces == static_cast<int64_t>(ArrayPlace::gpu))
        step_order.push_back(each / kPlaces);
    }
    prepare_gpu(step_order, gpu, mine == ArrayPlace::gpu ? &position : nullptr);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (on_gpu != all.end()) place_ = ArrayPlace::gpu;
  if (on_host != all.end()) place_ = ArrayPlace::host;
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

void Reducer::close() {
  registration_.close();
  bool is_half_way = false;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (failure_.empty()) failure_ = "This is the end of " + what_ + ": nothing can follow it.";
    came_.notify_one();
    // A collective that is in progress may come to its end, if the other ranks are but late.
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

}  // namespace easyddl
