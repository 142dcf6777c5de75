#include "bindings/kept_objects.h"

#include <utility>

namespace easyddl {

KeptObjects& kept_objects() {
  static auto* const one = new KeptObjects;
  return *one;
}

int64_t KeptObjects::keep(pybind11::object object) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_[++last_] = std::move(object);
  return last_;
}

void KeptObjects::free_released() {
  std::vector<pybind11::object> gone;  // freed without the lock, because that may run Python code
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t number : std::exchange(released_, {})) {
    gone.push_back(std::move(kept_[number]));
    kept_.erase(number);
  }
}

void KeptObjects::release(int64_t number) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    released_.push_back(number);
  }
  if (Py_IsInitialized() == 0) return;
  // Frees it soon. If the interpreter's queue of pending calls is full, the next submission frees
  // it.
  Py_AddPendingCall(
      [](void*) {
        kept_objects().free_released();
        return 0;
      },
      nullptr);
}

}  // namespace easyddl
