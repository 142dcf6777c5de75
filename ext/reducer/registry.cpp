#include "reducer/registry.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <utility>

namespace easyddl {
namespace {

// Never destroyed: threads of TensorFlow's may come here while the process ends.
struct Registry {
  std::mutex mutex;
  std::map<int64_t, Submittable*> open;
  std::map<int64_t, int> visitors;  // calls that are in progress, by number
  std::condition_variable visitor_left;
  int64_t last = 0;
};

Registry& registry() {
  static Registry* const all = new Registry;
  return *all;
}

// Keeps what is open from being destroyed for as long as it is used.
class Use {
 public:
  explicit Use(int64_t number) : number_(number) {
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto found = all.open.find(number);
    if (found == all.open.end()) return;
    target_ = found->second;
    ++all.visitors[number];
  }
  ~Use() {
    if (target_ == nullptr) return;
    Registry& all = registry();
    const std::lock_guard<std::mutex> lock(all.mutex);
    if (--all.visitors[number_] == 0) all.visitors.erase(number_);
    all.visitor_left.notify_all();
  }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

  Submittable* target() const { return target_; }

 private:
  const int64_t number_;
  Submittable* target_ = nullptr;
};

constexpr const char* kEnded =
    "This step exchanges gradients for a fit that has ended. Compile it again.";

void submit_to(int64_t number, size_t first, std::vector<Segment> arrays, double weight,
               Done done) {
  const Use visit(number);
  if (visit.target() == nullptr) return done(kEnded);
  visit.target()->submit(first, std::move(arrays), weight, std::move(done));
}

std::string submit_on_gpu_to(int64_t number, size_t first, std::vector<Segment> arrays,
                             const float* gpu_weight, double weight, void* stream, Done done) {
  const Use visit(number);
  if (visit.target() == nullptr) {
    done(kEnded);
    return kEnded;
  }
  return visit.target()->submit_on_gpu(first, std::move(arrays), gpu_weight, weight, stream, done);
}

void submit_rows_to(int64_t number, std::vector<Rows> rows, double weight, MakeRoom make_room,
                    Done done) {
  const Use visit(number);
  if (visit.target() == nullptr) return done(kEnded);
  visit.target()->submit_rows(std::move(rows), weight, std::move(make_room), std::move(done));
}

int64_t enter(Submittable& target) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open[++all.last] = &target;
  return all.last;
}

}  // namespace

Registration::Registration(Submittable& target) : number_(enter(target)) {}

void Registration::close() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.open.erase(number_);
}

void Registration::end() {
  close();
  Registry& all = registry();
  std::unique_lock<std::mutex> lock(all.mutex);
  all.visitor_left.wait(lock, [&] { return all.visitors.count(number_) == 0; });
}

bool only_queues_on_gpu(int64_t reducer) {
  const Use visit(reducer);
  return visit.target() != nullptr && visit.target()->only_queues();
}

void give_up(int64_t number, const std::string& why) {
  const Use visit(number);
  if (visit.target() != nullptr) visit.target()->give_up(why);
}

const ReducerEntryPoints& reducer_entry_points() {
  static const ReducerEntryPoints entry_points{submit_to, submit_on_gpu_to, submit_rows_to};
  return entry_points;
}

}  // namespace easyddl
