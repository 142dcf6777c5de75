#include "reducer/registry.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace easyddl {
namespace {

// Never destroyed, because threads of TensorFlow may call in while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, Submittable*> open;
  std::map<int64_t, int> active_calls;  // calls that are in progress, by number
  std::condition_variable call_ended;
  int64_t last = 0;
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

// Keeps a registered object alive for the duration of a call.
class ActiveCall {
 public:
  explicit ActiveCall(int64_t number) : number_(number) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.open.find(number);
    if (found == all.open.end()) return;
    target_ = found->second;
    ++all.active_calls[number];
  }
  ~ActiveCall() {
    if (target_ == nullptr) return;
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (--all.active_calls[number_] == 0) all.active_calls.erase(number_);
    all.call_ended.notify_all();
  }
  ActiveCall(const ActiveCall&) = delete;
  ActiveCall& operator=(const ActiveCall&) = delete;

  Submittable* target() const { return target_; }

 private:
  const int64_t number_;
  Submittable* target_ = nullptr;
};

constexpr const char* kEnded =
    "This step reduces gradients for a fit that has ended. Compile it again.";

void submit_to(int64_t number, size_t first, std::vector<Segment> arrays, double weight,
               Done done) {
  const ActiveCall call(number);
  if (call.target() == nullptr) return done(kEnded);
  call.target()->submit(first, std::move(arrays), weight, std::move(done));
}

std::string submit_on_gpu_to(int64_t number, size_t first, std::vector<Segment> arrays,
                             const float* gpu_weight, double weight, void* stream, Done done) {
  const ActiveCall call(number);
  if (call.target() == nullptr) {
    done(kEnded);
    return kEnded;
  }
  return call.target()->submit_on_gpu(first, std::move(arrays), gpu_weight, weight, stream, done);
}

void submit_rows_to(int64_t number, std::vector<Rows> rows, double weight,
                    AllocateRows allocate_rows, Done done) {
  const ActiveCall call(number);
  if (call.target() == nullptr) return done(kEnded);
  call.target()->submit_rows(std::move(rows), weight, std::move(allocate_rows), std::move(done));
}

int64_t add(Submittable& target) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open[++all.last] = &target;
  return all.last;
}

}  // namespace

Registration::Registration(Submittable& target) : number_(add(target)) {}

void Registration::close() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open.erase(number_);
}

void Registration::end() {
  close();
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.call_ended.wait(lock, [&] { return all.active_calls.count(number_) == 0; });
}

bool only_queues_on_gpu(int64_t reducer) {
  const ActiveCall call(reducer);
  return call.target() != nullptr && call.target()->only_queues();
}

void give_up(int64_t number, const std::string& why) {
  const ActiveCall call(number);
  if (call.target() != nullptr) call.target()->give_up(why);
}

const ReducerEntryPoints& reducer_entry_points() {
  static const ReducerEntryPoints entry_points{submit_to, submit_on_gpu_to, submit_rows_to};
  return entry_points;
}

}  // namespace easyddl
