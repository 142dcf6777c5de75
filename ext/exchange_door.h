// How another library of this process hands gradients to an exchange.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "pieces.h"

namespace easyddl {

// The frameworks' ops live in libraries of their own, which know neither Python nor MPI, and
// are not linked with the engine. They are given this at load; both come from one build.
struct ExchangeDoor {
  // Hands in the arrays of one or more whole buckets, from bucket `first` on, to the exchange
  // of that number. `weight` is that of this rank's batch, and matters with the first bucket of a
  // step. `done` is called once, maybe on another thread: its argument says why the arrays do not
  // hold the result, and is empty where they do.
  void (*submit)(int64_t exchange, size_t first, std::vector<Piece> arrays, double weight,
                 std::function<void(const std::string& error)> done);

  // The same for arrays that lie on a GPU, from a thread that queues work on `stream`. It only
  // queues more: the arrays are read once the stream has come to where it is now, and the stream
  // then waits for the results. So buckets must come in their order: a stream that waits for one
  // never comes to another that travels before it. Only the first call of an exchange waits for the
  // other ranks: they must begin their exchanges in one order.
  //
  // `gpu_weight` points to the weight on that GPU, or is null where `weight` tells it. Returns
  // why the stream does not wait, and will not find the results; empty where it does. `done` is
  // called once in any case: the arrays must live until then. What fails after this has returned
  // ends the job, since the framework counts on the results.
  std::string (*submit_on_gpu)(int64_t exchange, size_t first, std::vector<Piece> arrays,
                               const float* gpu_weight, double weight, void* stream,
                               std::function<void(const std::string& error)> done);
};

}  // namespace easyddl
