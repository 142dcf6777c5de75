// Arrays as Python passes them.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <tuple>
#include <vector>

#include "arrays/segment_list.h"

namespace easyddl {

// The bytes of a numpy array. The name of its dtype, where it matters, is another argument.
using Bytes = pybind11::array_t<uint8_t, pybind11::array::c_style>;

// Throws an Error unless inputs and outputs are equally many and equally long.
SegmentList to_segments(const std::vector<Bytes>& inputs, std::vector<Bytes>& outputs);

// Throws an Error unless the array has so many bytes.
void require_bytes(const Bytes& array, size_t bytes, const char* name);

// The sum of the counts. Throws an Error unless there is one a rank, and none is negative.
size_t total(const std::vector<int64_t>& counts, int size, const char* name);

// For frameworks whose tensors are known to Python alone: where each is read, where its result
// goes, and its bytes.
using Addresses = std::vector<std::tuple<uintptr_t, uintptr_t, size_t>>;

std::vector<Segment> to_segments(const Addresses& arrays);

}  // namespace easyddl
