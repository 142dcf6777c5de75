#include "runtime/startup_monitor.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/definitions.h"
#include "bindings/python_lock.h"

namespace py = pybind11;

namespace easyddl {

void define_startup_monitor(py::module_& m) {
  py::class_<StartupMonitor>(m, "StartupMonitor", "Deadlines and Ctrl-C while easyddl starts.")
      .def(py::init([](int rank, const std::string& host, double stall_warn, double stall_abort) {
             return std::make_unique<StartupMonitor>(rank, host,
                                                     Deadlines{stall_warn, stall_abort});
           }),
           py::arg("rank"), py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"),
           "Begins. `rank` and `host` are those that the launcher and the system tell.")
      .def("enter", &StartupMonitor::enter, py::arg("step"), py::arg("has_mpi"),
           "This rank enters a step of the start; `has_mpi`: MPI has started.")
      .def("stop", &StartupMonitor::stop, py::call_guard<WithoutPythonLock>(),
           "The start has ended, well or not.");
}

}  // namespace easyddl
