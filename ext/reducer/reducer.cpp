#include "reducer/reducer.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "collectives/all_gather.h"
#include "common/check.h"
#include "common/thread.h"
#include "mpi/agreement.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// How long `close` waits for the other ranks of an unfinished step.
constexpr std::chrono::seconds kCloseTimeout{1};

// Returns the text of the error that a function throws; empty if it throws none.
template <class Function>
std::string error_of(Function function) {
  try {
    function();
    return "";
  } catch (const std::exception& error) {
    return error.what();
  }
}

int64_t now_if_traced() { return Trace::on() != nullptr ? Trace::now() : 0; }

}  // namespace

// Lets only one thread of this rank advance the reducer until the end of the scope.
class Reducer::AdvanceLock {
 public:
  explicit AdvanceLock(Reducer& reducer) : reducer_(reducer) {
    std::unique_lock<std::mutex> lock(reducer_.state().mutex);
    const std::string& failure = reducer_.state().failure;
    ++reducer_.waiting_to_advance_;
    reducer_.not_advancing_.wait(lock, [&] { return !reducer_.is_advancing_ || !failure.empty(); });
    --reducer_.waiting_to_advance_;
    if (!failure.empty()) throw Error(failure);
    reducer_.is_advancing_ = true;
  }
  ~AdvanceLock() {
    const std::lock_guard<std::mutex> lock(reducer_.state().mutex);
    reducer_.is_advancing_ = false;
    reducer_.not_advancing_.notify_all();
    reducer_.arrived_.notify_one();
  }
  AdvanceLock(const AdvanceLock&) = delete;
  AdvanceLock& operator=(const AdvanceLock&) = delete;

 private:
  Reducer& reducer_;
};

Reducer::Reducer(ReducerGroup& group, std::string what, std::vector<Bucket> buckets,
                 std::vector<Table> tables, std::optional<DType> wire)
    : Participant(std::move(what)),
      plan_{this->what(), std::move(buckets), !tables.empty(),
            group.communicator().topology().has_several_hosts() ? wire : std::nullopt},
      communicator_(open_child(group.communicator(), plan_.what, plan_.most_bytes())),
      step_(plan_, *communicator_, state(), number()),
      on_host_(plan_, *communicator_, step_, std::move(tables)),
      on_gpu_(plan_, *communicator_, step_, group, number()),
      waiting_(plan_.num_buckets()) {
  try {
    all_or_none(group.world().comm(), [this] {
      thread_ = start_thread("easyddl grads", "that reduces gradients", [this] { run(); });
    });
  } catch (...) {
    close();
    throw;
  }
}

Reducer::~Reducer() { close(); }

void Reducer::submit(size_t first, std::vector<Segment> arrays, double weight, Done done) {
  enqueue(first, {std::move(arrays), weight, std::move(done), 0, {}, {}});
}

void Reducer::submit_rows(std::vector<Rows> rows, double weight, AllocateRows allocate_rows,
                          Done done) {
  enqueue(plan_.buckets.size(),
          {{}, weight, std::move(done), 0, std::move(rows), std::move(allocate_rows)});
}

void Reducer::enqueue(size_t first, Request request) {
  request.submitted_at = now_if_traced();
  std::unique_lock<std::mutex> lock(state().mutex);
  const std::string failure = refusal(first, ArrayPlace::host);
  if (!failure.empty()) {
    lock.unlock();
    return request.done(failure);
  }
  waiting_[first].push_back(std::move(request));
  step_.note_submission();
  if (first == step_.next()) arrived_.notify_one();
}

std::string Reducer::submit_on_gpu(size_t first, std::vector<Segment> arrays,
                                   const float* gpu_weight, double weight, void* stream,
                                   const Done& done) {
  const int64_t submitted_at = now_if_traced();
  const GpuSource source{gpu_weight, static_cast<CudaStream>(stream)};
  try {
    const AdvanceLock advance_lock(*this);
    const int gpu = gpu_of_first(arrays);
    const CurrentContext current(context_of(gpu));
    const RelaxedCapture relaxed;
    {
      const std::lock_guard<std::mutex> lock(state().mutex);
      const std::string refused = refusal(first, ArrayPlace::gpu);
      if (!refused.empty()) throw Error(refused);
    }
    on_gpu_.require(first, arrays, gpu, source.stream);
    try {
      if (place_ == ArrayPlace::unknown) agree_on_place(ArrayPlace::gpu, gpu);
      on_gpu_.run({std::move(arrays), weight, done, submitted_at, {}, {}}, source);
    } catch (const std::exception& error) {
      // Other ranks may wait for this rank on the host. No rank waits for work that it has queued
      // on the GPU.
      on_gpu_.leave_step_order();
      give_up(error.what());
      throw;
    }
    return "";
  } catch (const std::exception& error) {
    done(error.what());
    return error.what();
  }
}

// Returns why arrays in this kind of memory cannot be submitted; empty if they can.
std::string Reducer::refusal(size_t first, ArrayPlace place) const {
  if (!state().failure.empty()) return state().failure;
  if (first >= plan_.num_buckets()) {
    return "There is no bucket " + std::to_string(first) + " in " + what() + ".";
  }
  if (place_ == ArrayPlace::unknown || place_ == place) return "";
  return std::string("The arrays of ") + what() + " were in " +
         (place_ == ArrayPlace::gpu ? "GPU" : "host") +
         " memory in its first step, but now are not. All steps must use the same kind of memory.";
}

void Reducer::give_up(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().failure.empty()) state().failure = why;
    arrived_.notify_one();
    state().all_joined.notify_all();
  }
  communicator_->give_up(why);
}

std::pair<uint64_t, std::vector<uint64_t>> Reducer::gathered() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return {step_.step(), on_host_.gathered_rows()};
}

void Reducer::forget_weights() {
  std::unique_lock<std::mutex> lock(state().mutex);
  not_advancing_.wait(lock, [this] { return !is_advancing_; });
  step_.forget_weights();
}

bool Reducer::only_queues() {
  const std::lock_guard<std::mutex> lock(state().mutex);
  return place_ == ArrayPlace::gpu && on_gpu_.only_queues();
}

void Reducer::run() {
  if (Trace* trace = Trace::on()) trace->name_thread("reducer " + std::to_string(number()));
  const std::string& failure = state().failure;
  std::unique_lock<std::mutex> lock(state().mutex);
  for (;;) {
    const auto has_batch = [this] { return !waiting_[step_.next()].empty(); };
    const auto can_join = [this] {
      return state().join.is_joining() && step_.next() == 0 && waiting_to_advance_ == 0;
    };
    arrived_.wait(
        lock, [&] { return !failure.empty() || (!is_advancing_ && (has_batch() || can_join())); });
    if (!failure.empty()) break;
    is_advancing_ = true;
    const std::string error = advance(lock);
    // Else the other ranks would wait for this rank.
    if (!error.empty()) communicator_->give_up(error);
    lock.lock();
    is_advancing_ = false;
    if (failure.empty()) state().failure = error;
    not_advancing_.notify_all();
  }
  not_advancing_.notify_all();
  state().all_joined.notify_all();
  fail_waiting(lock);
}

// Reduces the next request, or takes part in a step of the other ranks, without the lock. Returns
// the error; empty for none.
std::string Reducer::advance(std::unique_lock<std::mutex>& lock) {
  std::string failure;
  std::deque<Request>& requests = waiting_[step_.next()];
  if (place_ == ArrayPlace::unknown) {
    const ArrayPlace mine = !requests.empty() ? ArrayPlace::host : ArrayPlace::unknown;
    lock.unlock();
    failure = error_of([&] { agree_on_place(mine, std::nullopt); });
    // All ranks have joined. They learn that from the control word of this step.
    if (failure.empty() && place_ == ArrayPlace::unknown) {
      failure = error_of([this] { run_joined_step(); });
    }
  } else if (!requests.empty()) {
    const Request request = std::move(requests.front());
    requests.pop_front();
    lock.unlock();
    failure = error_of([&] { on_host_.run(request); });
    request.done(failure);
  } else {
    lock.unlock();
    failure = error_of([this] { run_joined_step(); });
  }
  return failure;
}

// Fails all requests that have not begun.
void Reducer::fail_waiting(std::unique_lock<std::mutex>& lock) {
  for (std::deque<Request>& requests : waiting_) {
    for (Request& request : std::exchange(requests, {})) {
      const std::string failure = state().failure;
      lock.unlock();
      request.done(failure);
      lock.lock();
    }
  }
}

// Agrees before the first step whether the arrays are in GPU memory, which a rank without arrays
// must know too. A rank with arrays in GPU memory also sends the position that it has claimed in
// the step order.
void Reducer::agree_on_place(ArrayPlace mine, std::optional<int> gpu) {
  constexpr int64_t kPlaces = 4;
  const uint64_t position = mine == ArrayPlace::gpu ? on_gpu_.claim() : 0;
  const std::vector<int64_t> all = gather_values(
      *communicator_, static_cast<int64_t>(mine) + kPlaces * static_cast<int64_t>(position),
      Fingerprint("the first step of " + what()));
  const auto first_with = [&](ArrayPlace place) {
    return std::find_if(all.begin(), all.end(), [&](int64_t each) {
      return each % kPlaces == static_cast<int64_t>(place);
    });
  };
  const auto on_host = first_with(ArrayPlace::host), on_gpu = first_with(ArrayPlace::gpu);
  if (on_host != all.end() && on_gpu != all.end()) {
    const Topology& topology = communicator_->topology();
    throw Error(topology.capitalized_name_of(on_gpu - all.begin()) +
                " submits arrays in GPU memory, but " + topology.name_of(on_host - all.begin()) +
                " submits arrays in host memory, in the first step of " + what() +
                ". All ranks must train on the same kind of device.");
  }
  if (on_gpu != all.end()) {
    std::vector<int64_t> positions;
    for (int64_t each : all) {
      if (each % kPlaces == static_cast<int64_t>(ArrayPlace::gpu))
        positions.push_back(each / kPlaces);
    }
    on_gpu_.prepare(positions, gpu, mine == ArrayPlace::gpu ? &position : nullptr);
  }
  const std::lock_guard<std::mutex> lock(state().mutex);
  if (on_gpu != all.end()) place_ = ArrayPlace::gpu;
  if (on_host != all.end()) place_ = ArrayPlace::host;
}

void Reducer::run_joined_step() {
  if (on_gpu_.is_prepared()) {
    on_gpu_.run_joined_step();
  } else {
    on_host_.run_joined_step();
  }
}

void Reducer::close() {
  registration().close();
  bool is_unfinished = false;
  {
    std::unique_lock<std::mutex> lock(state().mutex);
    if (state().failure.empty()) state().failure = end_text();
    arrived_.notify_one();
    // A collective in progress can still end if the other ranks are only late.
    not_advancing_.wait_for(lock, kCloseTimeout, [this] { return !is_advancing_; });
    is_unfinished = is_advancing_ || step_.next() != 0;
  }
  // After an error on this rank alone, the other ranks would wait in the step for long.
  if (is_unfinished) communicator_->give_up(what() + " was closed in the middle of a step.");
  if (thread_.joinable()) thread_.join();
  registration().end();
  on_host_.close();
  on_gpu_.close();
  communicator_->close();
  communicator_->world().stall_inspector().remove_child(communicator_->id());
}

}  // namespace easyddl
