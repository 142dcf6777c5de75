// What each file of the bindings defines in the module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace easyddl {

// Worlds and communicators are never destroyed: freeing a communicator takes all ranks, which end
// their interpreters at different times, and the exit of the process still needs the world. Nor are
// reducers: threads may be in them when the interpreter ends.
template <class T>
using Immortal = std::unique_ptr<T, pybind11::nodelete>;

void define_bench(pybind11::module_& m);
void define_communicator(pybind11::module_& m);
void define_gpu(pybind11::module_& m);
void define_process(pybind11::module_& m);
void define_profiling(pybind11::module_& m);
void define_reducer(pybind11::module_& m);
void define_startup_monitor(pybind11::module_& m);
void define_work_handle(pybind11::module_& m);
void define_world(pybind11::module_& m);

}  // namespace easyddl
