// Arrays as Python passes them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays/segment_list.h"

namespace easyddl {

// The bytes of a numpy array. Functions that need its dtype take the name as another argument.
using Bytes = pybind11::array_t<uint8_t, pybind11::array::c_style>;

// Pairs inputs and outputs. Throws an Error unless their numbers and lengths are equal.
SegmentList to_segments(const std::vector<Bytes>& inputs, std::vector<Bytes>& outputs);

// Throws an Error unless the array has `bytes` bytes. `name` is for the error.
void require_bytes(const Bytes& array, size_t bytes, const char* name);

// Returns the sum of the counts. Throws an Error unless there is one for each rank, and none is
// negative.
size_t total(const std::vector<int64_t>& counts, int size, const char* name);

// The tensors of frameworks that the engine reaches only through Python: the input address, the
// output address and the bytes of each.
using Addresses = std::vector<std::tuple<uintptr_t, uintptr_t, size_t>>;

std::vector<Segment> to_segments(const Addresses& arrays);

}  // namespace easyddl
