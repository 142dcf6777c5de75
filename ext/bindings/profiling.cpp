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
      "Collective. Writes what this process does to a file, by its descriptor.");
  m.def(
      "add_step",
      [](int64_t begin, int64_t end, int64_t step) {
        if (Trace* trace = Trace::on()) trace->add("step", begin, end, {{"step", step}});
      },
      py::arg("begin"), py::arg("end"), py::arg("step"),
      "Writes that a training step went from one time.monotonic_ns() to another.");
  m.def("time_spans", &time_spans, py::arg("count"),
        "How many seconds so many spans take, for a benchmark.");
}

}  // namespace easyddl
