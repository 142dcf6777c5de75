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
#include "collectives/all_gather.h"
#include "collectives/all_to_all.h"
#include "collectives/allreduce.h"
#include "collectives/barrier.h"
#include "collectives/broadcast.h"
#include "collectives/fingerprint.h"
#include "collectives/reduce_scatter.h"
#include "common/check.h"

namespace py = pybind11;

namespace easyddl {

namespace {

// Calls a Python function in the middle of a collective to allocate the array for the result, and
// keeps the array until the collective ends.
class Allocation {
 public:
  Allocation(py::function allocate, size_t unit_bytes)
      : allocate_(std::move(allocate)), unit_bytes_(unit_bytes) {}

  Allocate function() const {
    return [this](const std::vector<int64_t>& counts) -> void* {
      void* memory = nullptr;
      python_calls().run([&] { memory = make(counts); });
      if (memory == nullptr) throw Error("The Python interpreter is about to end.");
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
      // An exception may become the common error of all ranks, but an interrupt of one rank must
      // not.
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
  py::class_<Fingerprint>(
      m, "Fingerprint",
      "The description of a collective call, which must be the same on all ranks.")
      .def(py::init<std::string>(), py::arg("text"))
      .def_readonly("text", &Fingerprint::text);
  py::class_<Communicator, Immortal<Communicator>>(
      m, "Communicator", "A sequence of collectives that all ranks call in the same order.")
      .def(py::init([](World& world, bool watch_signals) {
             const WithoutPythonLock nogil;
             Immortal<Communicator> communicator(open_communicator(world).release());
             if (watch_signals) communicator->set_idle(check_signals);
             return communicator;
           }),
           py::arg("world"), py::arg("watch_signals"), py::keep_alive<1, 2>(),
           "Collective. With `watch_signals`, Ctrl-C ends a wait of Python's main thread.")
      .def(
          "open_child",
          [](Communicator& communicator, const std::string& what) {
            const WithoutPythonLock nogil;
            Immortal<Communicator> child(open_child(communicator, what).release());
            child->set_idle(check_signals);
            return child;
          },
          py::arg("what"), py::keep_alive<0, 1>(),
          "Collective over the communicator. Returns a communicator that breaks when this one "
          "breaks. Ctrl-C ends a wait of Python's main thread in it. `what` describes its use.")
      .def_property_readonly("id", &Communicator::id,
                             "The communicator's number, the same on all ranks and never used "
                             "again.")
      .def_property_readonly("failure", &Communicator::failure,
                             "Why the communicator cannot be used any more, as far as this rank "
                             "knows; empty if it can.")
      .def(
          "allreduce",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, const std::string& dtype, const std::string& op,
             const Fingerprint& fingerprint, const std::string& wire_dtype) {
            const SegmentList segments = to_segments(inputs, outputs);
            const DType type = parse_dtype(dtype);
            const Op function = parse_op(op);
            const std::optional<DType> wire = parse_wire_dtype(wire_dtype);
            const WithoutPythonLock nogil;
            allreduce(communicator, segments, type, function, fingerprint, wire);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("dtype"), py::arg("op"),
          py::arg("fingerprint"), py::arg("wire_dtype") = "float32",
          "Reduces a list of arrays over all ranks, element by element. `wire_dtype` is the dtype "
          "in which float32 is sent to other hosts.")
      .def(
          "broadcast",
          [](Communicator& communicator, const std::vector<Bytes>& inputs,
             std::vector<Bytes> outputs, int root, const Fingerprint& fingerprint) {
            const SegmentList segments = to_segments(inputs, outputs);
            const WithoutPythonLock nogil;
            broadcast(communicator, segments, root, fingerprint);
          },
          py::arg("inputs"), py::arg("outputs"), py::arg("root"), py::arg("fingerprint"),
          "Writes the root's inputs to the outputs of all other ranks.")
      .def(
          "barrier",
          [](Communicator& communicator, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            barrier(communicator, fingerprint);
          },
          py::arg("fingerprint"), "Returns once all ranks have called it.")
      .def(
          "gather_values",
          [](Communicator& communicator, int64_t value, const Fingerprint& fingerprint) {
            const WithoutPythonLock nogil;
            return gather_values(communicator, value, fingerprint);
          },
          py::arg("value"), py::arg("fingerprint"),
          "Returns the values of all ranks, in the order of the ranks.")
      .def(
          "all_gather",
          [](Communicator& communicator, const Bytes& input, int64_t count, size_t unit_bytes,
             const Fingerprint& fingerprint, const py::function& allocate) {
            require_bytes(input, static_cast<size_t>(count) * unit_bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            all_gather(communicator, input.data(), count, unit_bytes, fingerprint,
                       result.function());
          },
          py::arg("input"), py::arg("count"), py::arg("unit_bytes"), py::arg("fingerprint"),
          py::arg("allocate"),
          "Gathers the units of all ranks, in the order of the ranks. This rank contributes "
          "`count` "
          "units. `allocate` is passed the counts of all ranks, and returns the array for the "
          "result.")
      .def(
          "all_to_all",
          [](Communicator& communicator, const Bytes& input, const std::vector<int64_t>& sends,
             size_t unit_bytes, const Fingerprint& fingerprint, const py::function& allocate) {
            const size_t bytes = total(sends, communicator.size(), "sends") * unit_bytes;
            require_bytes(input, bytes, "input");
            const Allocation result(allocate, unit_bytes);
            const WithoutPythonLock nogil;
            all_to_all(communicator, input.data(), sends, unit_bytes, fingerprint,
                       result.function());
          },
          py::arg("input"), py::arg("sends"), py::arg("unit_bytes"), py::arg("fingerprint"),
          py::arg("allocate"),
          "Sends sends[r] units to each rank r. `allocate` is passed the number of units that each "
          "rank sends to this one, and returns the array for them.")
      .def(
          "broadcast_unknown",
          [](Communicator& communicator, const Bytes& input, int root,
             const Fingerprint& fingerprint, const py::function& allocate) {
            const Allocation result(allocate, 1);
            const WithoutPythonLock nogil;
            broadcast_unknown(communicator, input.data(), input.nbytes(), root, fingerprint,
                              result.function());
          },
          py::arg("input"), py::arg("root"), py::arg("fingerprint"), py::arg("allocate"),
          "Broadcasts the root's input to ranks that do not know its length. `allocate` is passed "
          "a "
          "list of that length, and returns the array for the result, on all ranks.")
      .def(
          "give_up",
          [](Communicator& communicator, const py::str& why) {
            std::string reason;  // stays empty if no memory is left for it
            try {
              reason = why;
            } catch (const std::exception&) {
              reason.clear();
            }
            const WithoutPythonLock nogil;
            communicator.give_up(reason);
          },
          py::arg("why"),
          "Breaks the communicator on all ranks, because this rank leaves a collective that others "
          "may be in.")
      .def("close", &Communicator::close, py::call_guard<WithoutPythonLock>(),
           "Frees this rank's memory, unless a thread is in a collective. Every later call fails.")
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
            reduce_scatter(communicator, input.data(), out, count, type, function, fingerprint);
          },
          py::arg("input"), py::arg("output"), py::arg("count"), py::arg("size"), py::arg("dtype"),
          py::arg("op"), py::arg("fingerprint"),
          "Reduces part r of all ranks' inputs, and writes it to the output of rank r.");
}

}  // namespace easyddl
