// What frameworks hand arrays in to, by numbers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arrays/rows.h"
#include "arrays/segment_list.h"
#include "reducer/entry_points.h"

namespace easyddl {

// Called once for a request, maybe on another thread: `error` says why the arrays do not hold the
// result, and is empty where they do.
using Done = std::function<void(const std::string& error)>;

// See ReducerEntryPoints, whose functions lead here.
class Submittable {
 public:
  virtual ~Submittable() = default;
  virtual void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) = 0;
  virtual std::string submit_on_gpu(size_t first, std::vector<Segment> arrays,
                                    const float* gpu_weight, double weight, void* stream,
                                    const Done& done) = 0;
  virtual void submit_rows(std::vector<Rows> rows, double weight, MakeRoom make_room,
                           Done done) = 0;
  // This rank leaves a step half-way, which others may be in. Nothing can follow, on any rank.
  virtual void give_up(const std::string& why) = 0;
  // See `only_queues_on_gpu`.
  virtual bool only_queues() { return false; }
};

// A place in the registry. Numbers are never used again, so that a step that was compiled for what
// is closed is told so.
class Registration {
 public:
  explicit Registration(Submittable& target);
  ~Registration() { end(); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  int64_t number() const { return number_; }

  // From now on nothing is submitted. Calls that have begun may still be in progress.
  void close();
  // Closes it, and returns once none is. Whoever they wait for must have let them go.
  void end();

 private:
  const int64_t number_;
};

// Whether arrays on GPUs are only queued when they are submitted to a reducer, which is open, and
// their thread goes on at once: so by NCCL alone, and once the first step has been taken.
bool only_queues_on_gpu(int64_t reducer);

// Gives up what is open under this number. Nothing happens if nothing is.
void give_up(int64_t number, const std::string& why);

// Leads to what is open in this process. Never destroyed.
const ReducerEntryPoints& reducer_entry_points();

}  // namespace easyddl
