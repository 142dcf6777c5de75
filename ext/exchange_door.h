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
};

}  // namespace easyddl
