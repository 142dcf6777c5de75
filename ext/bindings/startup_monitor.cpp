#include "runtime/startup_monitor.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/definitions.h"
#include "bindings/python_lock.h"

namespace py = pybind11;

namespace easyddl {

void define_startup_monitor(py::module_& m) {
  py::class_<StartupMonitor>(m, "StartupMonitor", "Deadlines and Ctrl-C while easyddl starts.")
      .def(py::init([](int rank, const std::string& host, double stall_warn, double stall_abort,
                       bool may_exit, int agent, int local_size, const std::string& local_rank,
                       const std::vector<std::string>& launchers) {
             return std::make_unique<StartupMonitor>(
                 rank, host, Deadlines{stall_warn, stall_abort},
                 LocalRanks(agent, local_size, local_rank, launchers), may_exit);
           }),
           py::arg("rank"), py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"),
           py::arg("may_exit"), py::arg("agent") = 0, py::arg("local_size") = 0,
           py::arg("local_rank") = "", py::arg("launchers") = std::vector<std::string>(),
           "Begins to monitor. `rank` is from the launcher, and `host` from the system. "
           "`may_exit` says whether an exit before MPI_Init ends the job. The "
           "process `agent` has started `local_size` ranks on this host, and numbered them by the "
           "environment variable `local_rank`. `launchers` names the programs that start ranks.")
      .def("enter", &StartupMonitor::enter, py::arg("step"), py::arg("has_mpi"),
           "Records that this rank enters a step of the start. `has_mpi` says whether MPI has "
           "started.")
      .def("stop", &StartupMonitor::stop, py::call_guard<WithoutPythonLock>(),
           "Records that the start has ended, with success or not.");
}

}  // namespace easyddl
