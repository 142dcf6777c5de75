// Tensors that Python submits to a reducer, by their addresses.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>

#include "bindings/arrays.h"
#include "reducer/work_handle.h"

namespace easyddl {

// Submits arrays in the host's memory: see ReducerEntryPoints. By number, not by object, so that a
// reducer that another thread closes meanwhile refuses instead of being used.
WorkHandle submit(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                  pybind11::object keep);

// Submits arrays in a GPU's memory. Throws an Error if the stream will not wait for the results.
void submit_on_gpu(int64_t reducer, size_t first, const Addresses& arrays, double weight,
                   uintptr_t gpu_weight, uintptr_t stream, pybind11::object keep);

}  // namespace easyddl
