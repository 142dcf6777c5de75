#include "bindings/python_calls.h"

namespace easyddl {

PythonVisits& visits() {
  static auto* const all = new PythonVisits;
  return *all;
}

void check_signals() {
  visits().make([] {
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  });
}

}  // namespace easyddl
