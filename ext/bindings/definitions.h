// The functions by which each file of the bindings adds its definitions to the module.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace easyddl {

// The holder of objects that are never destroyed. All ranks together must free an MPI communicator,
// but their interpreters end at different times; the exit handler needs the world; and threads may
// be in reducers when the interpreter ends.
template <class T>
using Immortal = std::unique_ptr<T, pybind11::nodelete>;

void define_bench(pybind11::module_& m);
void define_communicator(pybind11::module_& m);
void define_gpu(pybind11::module_& m);
void define_inter_host_algorithm(pybind11::module_& m);
void define_process(pybind11::module_& m);
void define_profiling(pybind11::module_& m);
void define_reducer(pybind11::module_& m);
void define_startup_monitor(pybind11::module_& m);
void define_world(pybind11::module_& m);

}  // namespace easyddl
