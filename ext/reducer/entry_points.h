// The functions by which the frameworks' ops submit gradients to a reducer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "arrays/rows.h"
#include "arrays/segment_list.h"

namespace easyddl {

// Called once for a request, possibly on another thread. `error` is empty if the arrays hold the
// result.
using Done = std::function<void(const std::string& error)>;

// Pointers to functions of the engine. The ops of TensorFlow and XLA are in separate libraries,
// which use neither Python nor MPI and are not linked with the engine. They receive this struct
// when they are loaded. All libraries are from the same build.
struct ReducerEntryPoints {
  // Submits the arrays of one or more whole buckets, beginning with bucket `first`, to the reducer
  // with this number. `weight` is the weight of this rank's batch, and is used with the first
  // bucket of a step. `done` is called once, possibly on another thread. Its argument is empty if
  // the arrays hold the result; otherwise it is the error.
  void (*submit)(int64_t reducer, size_t first, std::vector<Segment> arrays, double weight,
                 Done done);

  // The same for arrays in GPU memory. `stream` is the framework's stream: the arrays are read when
  // the work queued on it so far is done, and work that is queued later waits for the results. With
  // the first bucket of a step the calling thread waits until all ranks have begun the step. If the
  // algorithm of a bucket involves the hosts, the thread also waits for their part. Buckets must be
  // submitted in order. All ranks must submit the steps of all their reducers in the same order,
  // and no other reducer's step may come between the buckets of a step.
  //
  // If `gpu_weight` is not null, it points to the weight in GPU memory, which replaces `weight`;
  // the thread waits until it is computed. Returns an error if the arrays were refused, so that the
  // stream does not wait; empty otherwise. `done` is called once in either case, and the arrays
  // must live until then. A step that fails part-way ends the job, because the other ranks' GPUs
  // wait for this rank's GPU.
  std::string (*submit_on_gpu)(int64_t reducer, size_t first, std::vector<Segment> arrays,
                               const float* gpu_weight, double weight, void* stream, Done done);

  // Submits this rank's rows of all tables of a reducer. They are gathered after its last bucket.
  // `allocate_rows` is called once, possibly on another thread, when the row counts of all ranks
  // are known. It is not called if the gathering fails before.
  void (*submit_rows)(int64_t reducer, std::vector<Rows> rows, double weight,
                      AllocateRows allocate_rows, Done done);
};

}  // namespace easyddl
