// How another library of this process hands gradients to a reducer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arrays/rows.h"
#include "arrays/segment_list.h"

namespace easyddl {

// The frameworks' ops live in libraries of their own, which know neither Python nor MPI, and
// are not linked with the engine. They are given this at load; both come from one build.
struct ReducerEntryPoints {
  // Hands in the arrays of one or more whole buckets, from bucket `first` on, to the reducer
  // of that number. `weight` is that of this rank's batch, and matters with the first bucket of a
  // step. `done` is called once, maybe on another thread: its argument says why the arrays do not
  // hold the result, and is empty where they do.
  void (*submit)(int64_t reducer, size_t first, std::vector<Segment> arrays, double weight,
                 std::function<void(const std::string& error)> done);

  // The same for arrays that lie on a GPU, from a thread that queues work on `stream`. It queues
  // more: the arrays are read once the stream has come to where it is now, and the stream then
  // waits for the results. With the first bucket of a step the thread waits until all ranks have
  // begun it, and with each one for what the hosts have to do, where its algorithm has any.
  // Buckets must come in their order, and all ranks must hand in the steps of all their reducers
  // in one order: no step of another reducer comes between the buckets of a step.
  //
  // `gpu_weight` points to the weight on that GPU, or is null where `weight` tells it: then the
  // thread waits for it too. Returns why the stream does not wait, and will not find the results;
  // empty where it does. `done` is called once in any case: the arrays must live until then. A step
  // that fails half-way ends the job, since other ranks' GPUs wait for this one's.
  std::string (*submit_on_gpu)(int64_t reducer, size_t first, std::vector<Segment> arrays,
                               const float* gpu_weight, double weight, void* stream,
                               std::function<void(const std::string& error)> done);

  // Hands in this rank's rows of all tables of a reducer. They travel behind its last bucket.
  // `make_room` is called once, maybe on another thread, as soon as it is known how many rows all
  // ranks have; not where that fails before.
  void (*submit_rows)(int64_t reducer, std::vector<Rows> rows, double weight, MakeRoom make_room,
                      std::function<void(const std::string& error)> done);
};

}  // namespace easyddl
