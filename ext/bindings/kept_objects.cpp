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

void KeptObjects::let_go() {
  std::vector<pybind11::object> gone;  // freed without the lock: that may run Python
  const std::lock_guard<std::mutex> lock(mutex_);
  for (int64_t number : std::exchange(done_, {})) {
    gone.push_back(std::move(kept_[number]));
    kept_.erase(number);
  }
}

void KeptObjects::done_with(int64_t number) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    done_.push_back(number);
  }
  if (Py_IsInitialized() == 0) return;
  // Soon; or, where the interpreter has too many such calls before it, when Python comes again.
  Py_AddPendingCall(
      [](void*) {
        kept_objects().let_go();
        return 0;
      },
      nullptr);
}

}  // namespace easyddl
