// The registry of objects to which frameworks submit arrays. They are found by number.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "arrays/rows.h"
#include "arrays/segment_list.h"
#include "reducer/entry_points.h"

namespace easyddl {

// The target of the functions of ReducerEntryPoints, which documents the members.
class Submittable {
 public:
  virtual ~Submittable() = default;
  virtual void submit(size_t first, std::vector<Segment> arrays, double weight, Done done) = 0;
  virtual std::string submit_on_gpu(size_t first, std::vector<Segment> arrays,
                                    const float* gpu_weight, double weight, void* stream,
                                    const Done& done) = 0;
  virtual void submit_rows(std::vector<Rows> rows, double weight, AllocateRows allocate_rows,
                           Done done) = 0;
  // Breaks the object on all ranks, because this rank leaves a step that the others may be in.
  virtual void give_up(const std::string& why) = 0;
  // See `only_queues_on_gpu`.
  virtual bool only_queues() { return false; }
};

// An entry of the registry. Numbers are never reused, so that a step that was compiled for a closed
// object gets an error.
class Registration {
 public:
  explicit Registration(Submittable& target);
  ~Registration() { end(); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

  int64_t number() const { return number_; }

  // Refuses further submissions. Calls that have begun may still be in progress.
  void close();
  // Closes the entry, and waits until running calls have returned. The caller must first let them
  // finish.
  void end();

 private:
  const int64_t number_;
};

// Returns whether `submit_on_gpu` of this reducer only queues work and returns at once. This is so
// if the reducer is open, has run its first step, and uses NCCL alone.
bool only_queues_on_gpu(int64_t reducer);

// Calls `give_up` of the object with this number, if it is open.
void give_up(int64_t number, const std::string& why);

// Returns the entry points to the registered objects. Never destroyed.
const ReducerEntryPoints& reducer_entry_points();

}  // namespace easyddl
