#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/definitions.h"
#include "bindings/python_calls.h"
#include "runtime/job_abort.h"
#include "runtime/process_exit.h"
#include "runtime/worker_signals.h"
#include "runtime/world.h"

namespace py = pybind11;

namespace easyddl {

void define_process(py::module_& m) {
  m.def(
      "end_job", [](int status) { end_job(status); }, py::arg("status"),
      "Ends all ranks with this exit status. Does not return.");
  m.def("start_exit_protocol", &register_exit_handler, py::arg("world"),
        py::call_guard<WithoutPythonLock>(),
        "Makes this process wait for the other ranks when it exits, or end the job if it fails.");
  m.def("warn_at_end", &warn_at_end, py::arg("subject"), py::arg("text"),
        "Prints the text on the root when the job ends, if all ranks have passed it. A rank that "
        "exits with a status other than 0 prints its own. A later text on the same subject "
        "replaces it, and an empty one withdraws it.");
  m.def(
      "stop_signals", [] { python_calls().close(); }, py::call_guard<WithoutPythonLock>(),
      "Called when the interpreter is about to end. Waits no longer check for signals after "
      "this.");
  m.def("record_signal", &record_signal, py::arg("number"), py::arg("is_recorded"),
        "Says whether this process records a signal, instead of ending by it.");
  m.def("leave_signals_to_parent", &leave_signals_to_parent, py::arg("numbers"),
        "Makes this forked process ignore each of the signals that its parent records at the time, "
        "until the parent ends, unless the parent itself sends it.");
}

}  // namespace easyddl
