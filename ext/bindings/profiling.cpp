#include <pybind11/pybind11.h>

#include "bindings/definitions.h"
#include "bindings/python_lock.h"
#include "profiling/timeline.h"
#include "profiling/trace.h"
#include "runtime/world.h"

namespace py = pybind11;

namespace easyddl {

void define_profiling(py::module_& m) {
  m.def(
      "start_timeline",
      [](World& world, int file) {
        start_timeline(world.comm(), world.topology().cores_are_shared, file);
      },
      py::arg("world"), py::arg("file"), py::call_guard<WithoutPythonLock>(),
      "Collective. Writes a trace of this process to a file descriptor from now on.");
  m.def(
      "add_step",
      [](int64_t begin, int64_t end, int64_t step) {
        if (Trace* trace = Trace::on()) trace->add("step", begin, end, {{"step", step}});
      },
      py::arg("begin"), py::arg("end"), py::arg("step"),
      "Writes a training step to the trace. The times are of time.monotonic_ns().");
  m.def("time_spans", &time_spans, py::arg("count"),
        "Returns the seconds that `count` spans take, for a benchmark.");
}

}  // namespace easyddl
