// Objects that must live as long as the process.
#pragma once

#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace easyddl {

// Keeps an object of a collective that failed part-way, because MPI, or another rank of the host,
// may still write to its memory.
template <class T>
void keep_forever(std::unique_ptr<T> object) {
  // Never destroyed, but reachable, so that leak checkers do not report it.
  static auto* const mutex = new std::mutex;
  static auto* const kept = new std::vector<std::unique_ptr<T>>;
  const std::lock_guard<std::mutex> lock(*mutex);
  kept->push_back(std::move(object));
}

}  // namespace easyddl
