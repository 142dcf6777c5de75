#include <pybind11/pybind11.h>

#include "bindings/definitions.h"
#include "bindings/python_calls.h"
#include "runtime/job_abort.h"
#include "runtime/process_exit.h"
#include "runtime/world.h"

namespace py = pybind11;

namespace easyddl {

void define_process(py::module_& m) {
  m.def(
      "end_job", [](int status) { end_job(status); }, py::arg("status"),
      "Ends all ranks with this exit status. Does not return.");
  m.def("start_exit_protocol", &watch_exit, py::arg("world"), py::call_guard<WithoutPythonLock>(),
        "From now on this process parts from the others when it exits.");
  m.def("warn_at_end", &warn_at_end, py::arg("text"),
        "Prints the text on the root when the job ends, if all ranks have asked for it.");
  m.def(
      "stop_signals", [] { visits().close(); }, py::call_guard<WithoutPythonLock>(),
      "Called when the interpreter is about to end: waits no longer look for signals.");
}

}  // namespace easyddl
