// What a rank asks of a collective: all ranks must ask the same.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace easyddl {

// A text such as "allreduce of a float32 array of shape (3, 4), op 'mean'", and its hash,
// which is what ranks compare in the course of the collective itself.
struct Fingerprint {
  explicit Fingerprint(std::string text);

  std::string text;
  uint64_t hash;
};

// What the error says, equally on all ranks, when their texts (one a rank) differ.
std::string describe_disagreement(const std::vector<std::string>& texts);

}  // namespace easyddl
