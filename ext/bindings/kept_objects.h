// Python's objects that the engine uses for longer than a call.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace easyddl {

// Keeps what Python hands in until the engine has done with it. The interpreter's main thread then
// frees it, so that the engine's threads need not wait for Python's lock.
class KeptObjects {
 public:
  // Keeps an object until `done_with` is called with the number that this returns.
  int64_t keep(pybind11::object object);
  // From any thread, without Python's lock.
  void done_with(int64_t number);
  // Frees the objects that the engine has done with. To be called with Python's lock.
  void let_go();

 private:
  std::mutex mutex_;
  std::map<int64_t, pybind11::object> kept_;
  std::vector<int64_t> done_;
  int64_t last_ = 0;
};

// Never destroyed: threads of the engine outlive the module.
KeptObjects& kept_objects();

}  // namespace easyddl
