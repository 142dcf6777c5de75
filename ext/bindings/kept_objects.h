// Python objects that the engine uses for longer than a call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace easyddl {

// Keeps Python objects alive until the engine no longer uses them. The interpreter's main thread
// then frees them, so that the engine's threads need not wait for Python's lock.
class KeptObjects {
 public:
  // Keeps an object alive until `release` is called with the number that this returns.
  int64_t keep(pybind11::object object);
  // Marks an object as no longer used. May be called from any thread, without Python's lock.
  void release(int64_t number);
  // Frees the released objects. Must be called with Python's lock.
  void free_released();

 private:
  std::mutex mutex_;
  std::map<int64_t, pybind11::object> kept_;
  std::vector<int64_t> released_;
  int64_t last_ = 0;
};

// Never destroyed, because threads of the engine outlive the module.
KeptObjects& kept_objects();

}  // namespace easyddl
