// Submits tensors of Python to a reducer by their addresses.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "bindings/arrays.h"
#include "reducer/work_handle.h"

namespace easyddl {

// Submits arrays in host memory: see ReducerEntryPoints. The reducer is passed by number, so that
// the call fails safely if another thread closes it meanwhile.
WorkHandle submit(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                  pybind11::object keep);

// Submits arrays in GPU memory. Throws an Error if the arrays are refused, so that the stream does
// not wait.
void submit_on_gpu(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                   uintptr_t gpu_weight, uintptr_t stream, pybind11::object keep);

}  // namespace easyddl
