#include "runtime/world.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <string>

#include "bindings/definitions.h"
#include "bindings/python_calls.h"

namespace py = pybind11;

namespace easyddl {

void define_world(py::module_& m) {
  py::class_<World, Immortal<World>>(m, "World", "All ranks of the job, and where they are.")
      .def(py::init([](const std::string& host, double stall_warn, double stall_abort,
                       const std::string& racks, const std::string& algorithm,
                       const std::string& gpu, const std::string& cuda_aware) {
             const WithoutPythonLock nogil;
             return Immortal<World>(new World(host, {stall_warn, stall_abort},
                                              NetworkOptions{racks, algorithm, gpu, cuda_aware}));
           }),
           py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"), py::arg("racks") = "",
           py::arg("algorithm") = "", py::arg("gpu") = "", py::arg("cuda_aware") = "",
           "Collective over MPI_COMM_WORLD. `host` names this rank's host; deadlines in seconds. "
           "`racks`, `algorithm`, `gpu` and `cuda_aware` are those of rank 0: the rack of each "
           "host, with commas between; the algorithm between hosts (whole, direct, halving or "
           "ring); that of arrays on GPUs (nccl, hierarchical or host); and whether MPI accepts "
           "addresses on a GPU (0 or 1).")
      .def(
          "set_stack",
          [](World& w, const py::function& stack) {
            // Never destroyed: there may be no interpreter left to do so.
            auto* const function = new py::function(stack);
            w.stall_inspector().set_stack([function]() -> std::string {
              std::string text;
              visits().make([&] {
                try {
                  text = py::cast<std::string>((*function)());
                } catch (const std::exception& error) {
                  text = std::string("unknown: ") + error.what();
                }
              });
              return text;
            });
          },
          py::arg("stack"), "What says where this rank's script stands, if another rank asks.")
      .def(
          "set_activity",
          [](World& w, const std::string& activity) { w.stall_inspector().set_activity(activity); },
          py::arg("activity"), "What this rank does that may take long; empty for nothing.")
      .def("finish", &World::finish, py::call_guard<WithoutPythonLock>(),
           "Waits for what this rank has queued on its GPU.")
      .def_property_readonly("rank", [](const World& w) { return w.topology().rank; })
      .def_property_readonly("size", [](const World& w) { return w.topology().size; })
      .def_property_readonly("local_rank",
                             [](const World& w) { return w.topology().place.local_rank; })
      .def_property_readonly("local_size",
                             [](const World& w) { return w.topology().place.local_size; })
      .def_property_readonly("node_rank",
                             [](const World& w) { return w.topology().place.node_rank; })
      .def_property_readonly("num_nodes",
                             [](const World& w) { return w.topology().place.num_nodes; })
      .def_property_readonly("num_racks", [](const World& w) { return w.topology().num_racks; })
      .def_property_readonly("hosts", [](const World& w) { return w.topology().host_of; });
}

}  // namespace easyddl
