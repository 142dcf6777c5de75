#include "reducer/reducer.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/definitions.h"
#include "bindings/python_calls.h"
#include "bindings/submission.h"
#include "common/wait.h"
#include "reducer/registry.h"
#include "reducer/step_sum.h"

namespace py = pybind11;

namespace easyddl {

namespace {

// What gradients' reducers and sums have in common.
template <class T>
py::class_<T, Immortal<T>> define_submittable(py::module_& m, const char* name, const char* doc) {
  // Never destroyed: threads may be in progress in it when the interpreter ends.
  return py::class_<T, Immortal<T>>(m, name, doc)
      .def_property_readonly("number", &T::number)
      .def("join", &T::join, "From now on this rank has no batches: it adds nothing.")
      .def(
          "wait_for_all",
          [](T& target) { wait_with_signals([&] { return target.wait_for_all(kIdlePeriod); }); },
          "Returns once all ranks have joined.")
      .def_property_readonly(
          "waited",
          [](T& target) {
            std::optional<double> seconds;
            if (const auto waited = target.waited()) {
              seconds = std::chrono::duration<double>(*waited).count();
            }
            return seconds;
          },
          "Seconds for which steps have stood still for it.")
      .def("ask_to_stop", &T::ask_to_stop, py::arg("stop"),
           "Whether this rank asks all to stop, from its next step on.")
      .def_property_readonly(
          "join_state",
          [](T& target) {
            const JoinSummary join_summary = target.join_summary();
            return py::make_tuple(join_summary.missed, join_summary.uneven, join_summary.stop);
          },
          "Since `reset_join_state`: how many steps others took while this rank had no batch; the "
          "first "
          "step, from 1, in which any rank had none in a step of others; the first in which any "
          "has asked all to stop. 0 for none.")
      .def("reset_join_state", &T::forget, "Counts steps from 1 again, as an epoch begins.")
      .def(
          "submit",
          [](T& target, size_t first, const Addresses& arrays, double weight, py::object keep) {
            return submit(target.number(), first, arrays, weight, std::move(keep));
          },
          py::arg("first"), py::arg("arrays"), py::arg("weight"), py::arg("keep") = py::none(),
          "Submits the arrays of whole buckets, from bucket `first` on: where each is read, where "
          "its result goes, and its bytes. `keep` lives until the work is done, as this memory "
          "must: a wait for the work may be interrupted.")
      .def(
          "submit_on_gpu",
          [](T& target, size_t first, const Addresses& arrays, double weight, uintptr_t gpu_weight,
             uintptr_t stream, py::object keep) {
            submit_on_gpu(target.number(), first, arrays, weight, gpu_weight, stream,
                          std::move(keep));
          },
          py::arg("first"), py::arg("arrays"), py::arg("weight"), py::arg("gpu_weight"),
          py::arg("stream"), py::arg("keep") = py::none(),
          "The same for arrays on a GPU. `gpu_weight` is the address of a float32, or 0 to take "
          "`weight`. `stream` waits for the results. `keep` lives until they are there. It returns "
          "once all ranks have begun the step, and the hosts have done their part of it.")
      .def_property_readonly(
          "only_queues_on_gpu", [](T& target) { return only_queues_on_gpu(target.number()); },
          "Whether `submit_on_gpu` only queues work, and returns at once.")
      .def(
          "give_up", [](T& target, const std::string& why) { give_up(target.number(), why); },
          py::arg("why"), py::call_guard<WithoutPythonLock>(),
          "Breaks it on all ranks: this rank leaves a step that other ranks may be in.")
      .def("close", &T::close, py::call_guard<WithoutPythonLock>(),
           "Ends it. Returns once nothing of it is in progress.");
}

// Of each the name, the dtype, the rows and the bytes of a row.
using Tables = std::vector<std::tuple<std::string, std::string, size_t, size_t>>;

std::vector<Table> to_tables(const Tables& tables) {
  std::vector<Table> list;
  for (const auto& [name, dtype, rows, row_bytes] : tables) {
    list.push_back({name, parse_dtype(dtype), rows, row_bytes});
  }
  return list;
}

void define_reducer_class(py::module_& m) {
  define_submittable<Reducer>(m, "Reducer", "A list of gradients, averaged step after step.")
      .def(py::init([](World& world, const std::string& what,
                       const std::vector<std::pair<std::string, std::vector<size_t>>>& buckets,
                       const std::string& op, const Tables& tables) {
             std::vector<Bucket> list;
             for (const auto& [dtype, bytes] : buckets) list.push_back({parse_dtype(dtype), bytes});
             const Op function = parse_op(op);
             std::vector<Table> of_rows = to_tables(tables);
             const WithoutPythonLock nogil;
             return Immortal<Reducer>(
                 new Reducer(world, what, std::move(list), function, std::move(of_rows)));
           }),
           py::arg("world"), py::arg("what"), py::arg("buckets"), py::arg("op") = "mean",
           py::arg("tables") = Tables{}, py::keep_alive<1, 2>(),
           "Collective. `buckets` holds the dtype of each, and the bytes of each of its arrays. "
           "`op` is the mean, weighted by the ranks' batches, or the sum. `tables` holds, of each "
           "sparse gradient, the variable's name, the dtype, the rows and the bytes of a row.")
      .def_property_readonly("gathered", &Reducer::gathered,
                             "How many steps there were, and how many rows of each table all "
                             "ranks have had in them.");
}

void define_step_sum(py::module_& m) {
  define_submittable<StepSum>(m, "StepSum", "A sum of float32 arrays at one place of a step.")
      .def(py::init([](World& world, const std::string& what, size_t count) {
             const WithoutPythonLock nogil;
             return Immortal<StepSum>(new StepSum(world, what, count));
           }),
           py::arg("world"), py::arg("what"), py::arg("count"), py::keep_alive<1, 2>(),
           "Collective. `count` is the number of elements.");
}

}  // namespace

void define_reducer(py::module_& m) {
  define_reducer_class(m);
  define_step_sum(m);
  m.def("reduced_steps", &reduced_steps, "How many steps of gradients were averaged.");
  m.def(
      "entry_points", [] { return reinterpret_cast<uintptr_t>(&reducer_entry_points()); },
      "The address of what leads frameworks' own libraries to the exchanges.");
}

}  // namespace easyddl
