#include "reducer/reducer.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/definitions.h"
#include "bindings/kept_objects.h"
#include "bindings/python_calls.h"
#include "common/check.h"
#include "common/wait.h"
#include "reducer/reducer_group.h"
#include "reducer/registry.h"
#include "reducer/step_sum.h"
#include "reducer/work_handle.h"

namespace py = pybind11;

namespace easyddl {

namespace {

// Submits arrays in host memory: see ReducerEntryPoints. The reducer is passed by number, so that
// the call fails safely if another thread closes it meanwhile.
WorkHandle submit(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                  py::object keep) {
  std::vector<Segment> segments = to_segments(arrays);
  kept_objects().free_released();
  const int64_t kept = kept_objects().keep(std::move(keep));
  WorkHandle work;
  const WithoutPythonLock nogil;
  reducer_entry_points().submit(reducer, first, std::move(segments), weight,
                                [kept, done = work.done()](const std::string& error) {
                                  done(error);
                                  kept_objects().release(kept);
                                });
  return work;
}

// Submits arrays in GPU memory. Throws an Error if the arrays are refused, so that the stream does
// not wait.
void submit_on_gpu(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                   uintptr_t gpu_weight, uintptr_t stream, py::object keep) {
  std::vector<Segment> segments = to_segments(arrays);
  kept_objects().free_released();
  const int64_t kept = kept_objects().keep(std::move(keep));
  const WithoutPythonLock nogil;
  const std::string refused = reducer_entry_points().submit_on_gpu(
      reducer, first, std::move(segments), reinterpret_cast<const float*>(gpu_weight), weight,
      reinterpret_cast<void*>(stream),
      [kept](const std::string&) { kept_objects().release(kept); });
  if (!refused.empty()) throw Error(refused);
}

void define_work_handle(py::module_& m) {
  py::class_<WorkHandle>(m, "WorkHandle",
                         "A handle on submitted arrays, by which to wait for their results.")
      .def(
          "wait",
          [](const WorkHandle& work) {
            wait_with_signals([&] { return work.wait_for(kIdlePeriod); });
          },
          "Waits until the arrays hold the result. Raises an Error if they cannot.");
}

// Defines the members that reducers and sums have in common.
template <class T>
py::class_<T, Immortal<T>> define_submittable(py::module_& m, const char* name, const char* doc) {
  return py::class_<T, Immortal<T>>(m, name, doc)
      .def_property_readonly("number", &T::number)
      .def("join", &T::join,
           "Declares that this rank has no more batches. It then takes part with zeros.")
      .def(
          "wait_for_all",
          [](T& target) { wait_with_signals([&] { return target.wait_for_all(kIdlePeriod); }); },
          "Returns once all ranks have joined.")
      .def_property_readonly(
          "waited",
          [](T& target) {
            std::optional<double> seconds;
            if (const auto waited = target.blocked_time()) {
              seconds = std::chrono::duration<double>(*waited).count();
            }
            return seconds;
          },
          "Total seconds in which steps were blocked on it; None for GPU arrays.")
      .def("ask_to_stop", &T::ask_to_stop, py::arg("stop"),
           "Sets whether this rank asks all ranks to stop, from its next step on.")
      .def_property_readonly(
          "join_state",
          [](T& target) {
            const JoinSummary join_summary = target.join_summary();
            return py::make_tuple(join_summary.missed, join_summary.uneven, join_summary.stop);
          },
          "Three numbers since `reset_join_state`: how many steps others took while this rank had "
          "no "
          "batch; the first step in which only some ranks had a batch; and the first step in which "
          "a rank asked all ranks to stop. Steps count from 1; 0 is for none.")
      .def("reset_join_state", &T::reset_join_state,
           "Resets `join_state`, and counts steps from 1 again. Called when an epoch begins.")
      .def(
          "submit",
          [](T& target, size_t first, const Addresses& arrays, double weight, py::object keep) {
            return submit(target.number(), first, arrays, weight, std::move(keep));
          },
          py::arg("first"), py::arg("arrays"), py::arg("weight"), py::arg("keep") = py::none(),
          "Submits the arrays of whole buckets, beginning with bucket `first`: the input address, "
          "the "
          "output address and the bytes of each. `keep` is kept alive until the work is done, and "
          "should own this memory, because a wait for the work may be interrupted.")
      .def(
          "submit_on_gpu",
          [](T& target, size_t first, const Addresses& arrays, double weight, uintptr_t gpu_weight,
             uintptr_t stream, py::object keep) {
            submit_on_gpu(target.number(), first, arrays, weight, gpu_weight, stream,
                          std::move(keep));
          },
          py::arg("first"), py::arg("arrays"), py::arg("weight"), py::arg("gpu_weight"),
          py::arg("stream"), py::arg("keep") = py::none(),
          "The same for arrays in GPU memory. `gpu_weight` is the address of a float32 in GPU "
          "memory, or 0 to use `weight`. `stream` waits for the results, and `keep` is kept alive "
          "until they are computed. Returns once all ranks have begun the step, and the hosts "
          "have done their part of it.")
      .def_property_readonly(
          "only_queues_on_gpu", [](T& target) { return only_queues_on_gpu(target.number()); },
          "Whether `submit_on_gpu` only queues work, and returns at once.")
      .def(
          "give_up", [](T& target, const std::string& why) { give_up(target.number(), why); },
          py::arg("why"), py::call_guard<WithoutPythonLock>(),
          "Breaks it on all ranks, because this rank leaves a step that other ranks may be in.")
      .def("close", &T::close, py::call_guard<WithoutPythonLock>(),
           "Closes it. Returns once no work of it is in progress.");
}

// The name, the dtype, the number of rows and the bytes of a row of each table.
using Tables = std::vector<std::tuple<std::string, std::string, size_t, size_t>>;

std::vector<Table> to_tables(const Tables& tables) {
  std::vector<Table> list;
  for (const auto& [name, dtype, rows, row_bytes] : tables) {
    list.push_back({name, parse_dtype(dtype), rows, row_bytes});
  }
  return list;
}

void define_reducer_group(py::module_& m) {
  py::class_<ReducerGroup, Immortal<ReducerGroup>>(
      m, "ReducerGroup", "Reducers and sums that break together, with resources that all share.")
      .def(py::init([](Communicator& communicator) {
             return Immortal<ReducerGroup>(new ReducerGroup(communicator));
           }),
           py::arg("communicator"), py::keep_alive<1, 2>(),
           "The first group. Its reducers work over the ranks of `communicator`.")
      .def(
          "over",
          [](const ReducerGroup& group, Communicator& communicator) {
            return Immortal<ReducerGroup>(new ReducerGroup(group, communicator));
          },
          py::arg("communicator"), py::keep_alive<0, 2>(),
          "Returns a group of another communicator that shares the resources of this one.");
}

void define_reducer_class(py::module_& m) {
  define_submittable<Reducer>(m, "Reducer",
                              "Averages a list of gradients over all ranks at every step.")
      .def(py::init([](ReducerGroup& group, const std::string& what,
                       const std::vector<std::pair<std::string, std::vector<size_t>>>& buckets,
                       const Tables& tables, const std::string& wire_dtype) {
             std::vector<Bucket> list;
             for (const auto& [dtype, bytes] : buckets) list.push_back({parse_dtype(dtype), bytes});
             std::vector<Table> of_rows = to_tables(tables);
             const std::optional<DType> wire = parse_wire_dtype(wire_dtype);
             const WithoutPythonLock nogil;
             return Immortal<Reducer>(
                 new Reducer(group, what, std::move(list), std::move(of_rows), wire));
           }),
           py::arg("group"), py::arg("what"), py::arg("buckets"), py::arg("tables") = Tables{},
           py::arg("wire_dtype") = "float32", py::keep_alive<1, 2>(),
           "Collective over the ranks of the group's communicator; it breaks when the communicator "
           "breaks. `buckets` holds the dtype of each bucket, and the bytes of each of its arrays. "
           "`tables` holds, for each sparse gradient, the name of the variable, the dtype, the "
           "number of rows and the "
           "bytes of a row. `wire_dtype` is the dtype in which float32 gradients are sent to "
           "other hosts.")
      .def("forget_weights", &Reducer::forget_weights, py::call_guard<WithoutPythonLock>(),
           "Makes the next step independent of the weights of the steps before. All ranks call it "
           "after the same step.")
      .def_property_readonly("gathered", &Reducer::gathered,
                             "The number of steps, and how many rows of each table all ranks "
                             "have had in them.");
}

void define_step_sum(py::module_& m) {
  define_submittable<StepSum>(m, "StepSum", "Sums a float32 array over all ranks within each step.")
      .def(py::init([](ReducerGroup& group, const std::string& what, size_t count) {
             const WithoutPythonLock nogil;
             return Immortal<StepSum>(new StepSum(group, what, count));
           }),
           py::arg("group"), py::arg("what"), py::arg("count"), py::keep_alive<1, 2>(),
           "Collective over the ranks of the group's communicator; it breaks when the communicator "
           "breaks. `count` is the number of elements.");
}

}  // namespace

void define_reducer(py::module_& m) {
  define_work_handle(m);
  define_reducer_group(m);
  define_reducer_class(m);
  define_step_sum(m);
  m.def("reduced_steps", &reduced_steps,
        "Returns how many steps of gradients this process has averaged.");
  m.def(
      "entry_points", [] { return reinterpret_cast<uintptr_t>(&reducer_entry_points()); },
      "Returns the address of the entry points by which frameworks' ops submit gradients.");
}

}  // namespace easyddl
