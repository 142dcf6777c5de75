// The engine's choice of an algorithm across hosts, by which `easyddl plan` computes. It needs no
// MPI.
#include "algorithms/inter_host_algorithm.h"

#include <pybind11/pybind11.h>

#include <string>

#include "bindings/definitions.h"

namespace py = pybind11;

namespace easyddl {
namespace {

InterHostOperation operation_of(size_t bytes, int members, int owners) {
  return {MPI_COMM_NULL, 0, members, owners, nullptr, bytes, DType::uint8, Op::sum};
}

}  // namespace

void define_inter_host_algorithm(py::module_& m) {
  m.attr("LATENCY_BYTES") = kLatencyBytes;
  m.attr("SENDER_BYTES") = kSenderBytes;
  m.attr("UNEVENNESS") = kUnevenness;
  m.def(
      "cheapest_inter_host_algorithm",
      [](size_t bytes, int members) {
        return name_of(cheapest_inter_host_algorithm(bytes, members));
      },
      py::arg("bytes"), py::arg("members"), "Returns the algorithm with the lowest cost.");
  m.def(
      "algorithm_with_shards",
      [](const std::string& name, size_t bytes, int members, int owners) {
        const InterHostAlgorithm algorithm = inter_host_algorithm_named(name).value();
        return name_of(algorithm_with_shards(algorithm, operation_of(bytes, members, owners)));
      },
      py::arg("name"), py::arg("bytes"), py::arg("members"), py::arg("owners"),
      "Returns the algorithm, or the one in its place if it leaves the owners no shards.");
  m.def(
      "direct_is_safe",
      [](size_t bytes, int members, int owners) {
        return direct_is_safe(operation_of(bytes, members, owners));
      },
      py::arg("bytes"), py::arg("members"), py::arg("owners"),
      "Returns whether the messages to one owner cannot overflow the buffers of a switch.");
}

}  // namespace easyddl
