#include "reducer/work_handle.h"

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/definitions.h"
#include "bindings/kept_objects.h"
#include "bindings/python_calls.h"
#include "bindings/submission.h"
#include "common/check.h"
#include "common/wait.h"
#include "reducer/registry.h"

namespace py = pybind11;

namespace easyddl {

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

}  // namespace easyddl
