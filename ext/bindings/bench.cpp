#include "bench/bench.h"

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/definitions.h"
#include "bindings/python_lock.h"
#include "common/check.h"

namespace py = pybind11;

namespace easyddl {

void define_bench(py::module_& m) {
  using Floats = py::array_t<float, py::array::c_style>;
  py::class_<Bench, Immortal<Bench>>(m, "Bench",
                                     "Measures the time of allreduce and of other methods.")
      .def(py::init([](World& world, Communicator& communicator) {
             const WithoutPythonLock nogil;
             return Immortal<Bench>(new Bench(world, communicator));
           }),
           py::arg("world"), py::arg("communicator"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>(), "Collective. The method `easyddl` uses `communicator`.")
      .def(
          "time",
          [](Bench& bench, const std::string& algorithm, const Floats& input, Floats output,
             Floats scratch, int calls) {
            const size_t count = static_cast<size_t>(input.size());
            if (output.size() != input.size() || scratch.size() != input.size()) {
              throw Error(
                  "The input, the output and the scratch memory must have the same length.");
            }
            const BenchData data{input.data(), output.mutable_data(), scratch.mutable_data(),
                                 count};
            const WithoutPythonLock nogil;
            return bench.time(algorithm, data, calls);
          },
          py::arg("name"), py::arg("input").noconvert(), py::arg("output").noconvert(),
          py::arg("scratch").noconvert(), py::arg("calls"),
          "Collective. Calls one method `calls` times, and returns the seconds of a call on this "
          "rank.");
}

}  // namespace easyddl
