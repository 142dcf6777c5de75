#include "collectives/communicator.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/definitions.h"
#include "bindings/python_calls.h"
#include "collectives/fingerprint.h"
#include "common/check.h"

namespace py = pybind11;

namespace easyddl {

namespace {

// Has Python make the array for a result, in the midst of a collective, and keeps it until the end.
class Allocation {
 public:
  Allocation(py::function allocate, size_t unit_bytes)
      : allocate_(std::move(allocate)), unit_bytes_(unit_bytes) {}

  Communicator::Allocate function() const {
    return [this](const std::vector<int64_t>& counts) -> void* {
      void* memory = nullptr;
      visits().make([&] { memory = make(counts); });
      if (memory == nullptr) throw Error("The interpreter is about to end.");
      return memory;
    };
  }

 private:
  void* make(const std::vector<int64_t>& counts) const {
    try {
      result_ = allocate_(counts).cast<Bytes>();
      const size_t units = total(counts, static_cast<int>(counts.size()), "counts");
      require_bytes(*result_, units * unit_bytes_, "The array for the result");
      return result_->mutable_data();
    } catch (const py::error_already_set& error) {
      // All ranks can fail alike for an error, but not for an interrupt of one of them.
      if (!error.matches(PyExc_Exception)) throw;
      throw Error(first_line(error.what()));
    }
  }
  static std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

  py::function allocate_;
  size_t unit_bytes_;
  mutable std::optional<Bytes> result_;
};

}  // namespace

void define_communicator(py::module_& m) {
  py::class_<Fingerprint>(m, "Fingerprint", "What a rank asks of a collective, in words.")
      .def(py::init<std::string>(), py::arg("text"))
      .def_readonly("text", &Fingerprint::text);
  py::class_<Communicator, Immortal<Communicator>>(
      m, "Communicator", "A sequence of collectives, which all ranks call in the same order.")
      .def(py::init([](World& world, bool watch_signals) {
             const WithoutPythonLock nogil;
             Immortal<Communicator> communicator(Communicator::open(world).release());
             if (watch_signals) communicator->set_idle(check_signals);
             return communicator;
           }),
           py::arg("world"), py::arg("watch_signals"), py::keep_alive<1, 2>(),
           "Collective. With `watch_signals` Ctrl-C ends a wait of Python's main thread.")
      .def(
          "allreduce",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, const std::string& dtype, const std::string& op,
             const Fingerprint& fingerprint) {
            const SegmentList segments = to_segments(inputs, outputs);
            const DType type = parse_dtype(dtype);
            const Op function = parse_op(op);
            const WithoutPythonLock nogil;
            communicator.allreduce(segments, type, function, fingerprint);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("dtype"), py::arg("op"),
          py::arg("fingerprint"), "Reduces a list of arrays over all ranks, element by element.")
      .def(
          "broadcast",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, int root, const Fingerprint& fingerprint) {
            const SegmentList segments = to_segments(inputs, outputs);
            const WithoutPythonLock nogil;
            communicator.broadcast(segments, root, fingerprint);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("root"), py::arg("fingerprint"),
          "Writes the root's inputs to the outputs of all other ranks.")
      .def(
          "barrier",
          [](Communicator& communicator, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            communicator.barrier(fingerprint);
          },
          py::arg("fingerprint"), "Returns once all ranks have called it.")
      .def(
          "gather_values",
          [](Communicator& communicator, int64_t value, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            return communicator.gather_values(value, fingerprint);
          },
          py::arg("value"), py::arg("fingerprint"), "The value of each rank, in their order.")
      .def(
          "all_gather",
          [](Communicator& communicator, const Bytes& input, int64_t count, size_t unit_bytes,
             const Fingerprint& fingerprint, const py::function& allocate) {
            require_bytes(input, static_cast<size_t>(count) * unit_bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            communicator.all_gather(input.data(), count, unit_bytes, fingerprint,
                                    result.function());
          },
          py::arg("input"), py::arg("count"), py::arg("unit_bytes"), py::arg("fingerprint"),
          py::arg("allocate"),
          "Writes all ranks' units, `count` of this one, in their order. `allocate` is passed the "
          "counts of all ranks, and returns the array for the result.")
      .def(
          "all_to_all",
          [](Communicator& communicator, const Bytes& input, const std::vector<int64_t>& sends,
             size_t unit_bytes, const Fingerprint& fingerprint, const py::function& allocate) {
            const size_t bytes = total(sends, communicator.size(), "sends") * unit_bytes;
            require_bytes(input, bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            communicator.all_to_all(input.data(), sends, unit_bytes, fingerprint,
                                    result.function());
          },
          py::arg("input"), py::arg("sends"), py::arg("unit_bytes"), py::arg("fingerprint"),
          py::arg("allocate"),
          "Sends sends[r] units to each rank r. `allocate` is passed how many come from each, and "
          "returns the array for them.")
      .def(
          "broadcast_unknown",
          [](Communicator& communicator, const Bytes& input, int root,
             const Fingerprint& fingerprint, const py::function& allocate) {
            const Allocation result(allocate, 1);
            const WithoutPythonLock nogil;
            communicator.broadcast_unknown(input.data(), input.nbytes(), root, fingerprint,
                                           result.function());
          },
          py::arg("input"), py::arg("root"), py::arg("fingerprint"), py::arg("allocate"),
          "Writes the root's input, whose length the others do not know, to the arrays of all. "
          "`allocate` is passed a list of that length, and returns this rank's.")
      .def("give_up", &Communicator::give_up, py::arg("why"), py::call_guard<WithoutPythonLock>(),
           "Breaks the communicator on all ranks: this one gives up a collective that others may "
           "be in.")
      .def(
          "reduce_scatter",
          [](Communicator& communicator, const Bytes& input, Bytes output, size_t count, int size,
             const std::string& dtype, const std::string& op, const Fingerprint& fingerprint) {
            const DType type = parse_dtype(dtype);
            const Op function = parse_op(op);
            const size_t part = count * size_of(type);
            require_bytes(input, part * static_cast<size_t>(size), "input");
            require_bytes(output, part, "output");
            void* out = output.mutable_data();
            const WithoutPythonLock nogil;
            communicator.reduce_scatter(input.data(), out, count, type, function, fingerprint);
          },
          py::arg("input"), py::arg("output"), py::arg("count"), py::arg("size"), py::arg("dtype"),
          py::arg("op"), py::arg("fingerprint"),
          "Reduces part r of all ranks' inputs into the output of rank r.");
}

}  // namespace easyddl
