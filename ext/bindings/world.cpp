#include "runtime/world.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <string>
#include <vector>

#include "bindings/definitions.h"
#include "bindings/python_calls.h"

namespace py = pybind11;

namespace easyddl {

void define_world(py::module_& m) {
  py::class_<World, Immortal<World>>(m, "World", "All ranks of the job, and their topology.")
      .def(
          py::init([](const std::string& host, double stall_warn, double stall_abort,
                      const std::string& racks, const std::string& host_order,
                      const std::string& algorithm, const std::string& gpu,
                      const std::string& cuda_aware) {
            const WithoutPythonLock nogil;
            return Immortal<World>(
                new World(host, {stall_warn, stall_abort},
                          NetworkOptions{racks, algorithm, gpu, cuda_aware, host_order}));
          }),
          py::arg("host"), py::arg("stall_warn"), py::arg("stall_abort"), py::arg("racks") = "",
          py::arg("host_order") = "", py::arg("algorithm") = "", py::arg("gpu") = "",
          py::arg("cuda_aware") = "",
          "Collective over MPI_COMM_WORLD. `host` names this rank's host; the deadlines are in "
          "seconds. The other options of rank 0 are used on all ranks. `racks` is the rack of each "
          "host, separated by commas, with larger groups before it, as in aisle/rack; `host_order` "
          "is the number of each host, in the order in which the levels take them; `algorithm` "
          "is the algorithm between hosts (whole, direct, "
          "halving or ring), or rules by size and level; `gpu` is the algorithm for arrays in GPU "
          "memory (nccl, hierarchical "
          "or host); and `cuda_aware` says whether MPI accepts GPU memory (0 or 1).")
      .def(
          "set_stack",
          [](World& w, const py::function& stack) {
            // Never destroyed, because the interpreter may have ended by then.
            auto* const function = new py::function(stack);
            w.stall_inspector().set_stack([function]() -> std::string {
              std::string text;
              python_calls().run([&] {
                try {
                  text = py::cast<std::string>((*function)());
                } catch (const std::exception& error) {
                  text = std::string("unknown: ") + error.what();
                }
              });
              return text;
            });
          },
          py::arg("stack"),
          "Sets the function that returns the stack of this rank's script, for other ranks that "
          "ask.")
      .def(
          "set_activity",
          [](World& w, const std::string& activity) { w.stall_inspector().set_activity(activity); },
          py::arg("activity"),
          "Sets this rank's current activity, which may take long; empty for none.")
      .def("finish", &World::finish, py::call_guard<WithoutPythonLock>(),
           "Waits for the work that this rank has queued on its GPU.")
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
      .def_property_readonly(
          "num_groups",
          [](const World& w) {
            std::vector<int> groups;
            for (const Topology::Level& level : w.topology().levels)
              groups.push_back(level.num_groups);
            return groups;
          },
          "The number of groups of each level, the innermost first.")
      .def_property_readonly("hosts", [](const World& w) { return w.topology().host_of; });
}

}  // namespace easyddl
