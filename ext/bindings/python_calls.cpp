#include "bindings/python_calls.h"

namespace easyddl {

PythonCalls& python_calls() {
  static auto* const all = new PythonCalls;
  return *all;
}

void check_signals() {
  python_calls().run([] {
    if (PyErr_CheckSignals() != 0) throw pybind11::error_already_set();
  });
}

}  // namespace easyddl
