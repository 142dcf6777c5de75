// The description of a rank's collective call, which must be the same on all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace easyddl {

// A text such as "allreduce of a float32 array of shape (3, 4), op 'mean'", and its hash. The ranks
// compare their hashes during the collective.
struct Fingerprint {
  explicit Fingerprint(std::string text);

  std::string text;
  uint64_t hash;
};

// Returns the message of the error for ranks whose texts differ. `texts` has one text for each
// rank. The message is the same on all ranks.
std::string describe_disagreement(const std::vector<std::string>& texts);

}  // namespace easyddl
