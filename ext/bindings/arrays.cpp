#include "bindings/arrays.h"

#include <string>
#include <utility>

#include "common/check.h"

namespace easyddl {

SegmentList to_segments(const std::vector<Bytes>& inputs, std::vector<Bytes>& outputs) {
  if (inputs.size() != outputs.size()) throw Error("There must be as many outputs as inputs.");
  std::vector<Segment> segments;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].nbytes() != outputs[i].nbytes()) {
      throw Error("Output " + std::to_string(i) + " has " + std::to_string(outputs[i].nbytes()) +
                  " bytes, but its input has " + std::to_string(inputs[i].nbytes()) + ".");
    }
    segments.push_back(
        {inputs[i].data(), outputs[i].mutable_data(), static_cast<size_t>(inputs[i].nbytes())});
  }
  return SegmentList(std::move(segments));
}

void require_bytes(const Bytes& array, size_t bytes, const char* name) {
  if (static_cast<size_t>(array.nbytes()) != bytes) {
    throw Error(std::string(name) + " has " + std::to_string(array.nbytes()) +
                " bytes, but needs " + std::to_string(bytes) + ".");
  }
}

size_t total(const std::vector<int64_t>& counts, int size, const char* name) {
  if (counts.size() != static_cast<size_t>(size)) {
    throw Error(std::string(name) + " must have one entry for each rank.");
  }
  int64_t sum = 0;
  for (int64_t each : counts) {
    if (each < 0) throw Error(std::string(name) + " has a negative entry.");
    sum += each;
  }
  return static_cast<size_t>(sum);
}

std::vector<Segment> to_segments(const Addresses& arrays) {
  std::vector<Segment> segments;
  for (const auto& [in, out, bytes] : arrays) {
    segments.push_back(
        {reinterpret_cast<const uint8_t*>(in), reinterpret_cast<uint8_t*>(out), bytes});
  }
  return segments;
}

}  // namespace easyddl
