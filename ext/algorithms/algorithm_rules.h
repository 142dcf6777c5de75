// The algorithms between hosts that the user or a plan has chosen, by level and by size.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/inter_host_algorithm.h"

namespace easyddl {

class AlgorithmRules {
 public:
  // Parses the text of EASYDDL_ALGORITHM: rules that are separated by commas, as in
  // "whole,100000:direct/ring". A rule is the number of bytes from which it holds, and the
  // algorithm of each level, the innermost first; one algorithm alone is that of all levels; `flat`
  // is one level of all hosts. The first rule has no number. An empty text has no rules. Throws an
  // Error for any other text, and for a rule with fewer algorithms than the given number of levels.
  AlgorithmRules(const std::string& text, size_t levels);

  // Returns the algorithm of a level for the bytes that a host has in all; nothing if the engine is
  // to choose, as without rules and for `flat`.
  std::optional<InterHostAlgorithm> algorithm(size_t level, size_t bytes) const;

  // Returns whether all hosts form one level, in the order of their numbers.
  bool is_flat(size_t bytes) const;

 private:
  struct Rule {
    size_t from;                               // bytes
    std::vector<InterHostAlgorithm> by_level;  // of each level, or one of all; empty if flat
  };

  const Rule* rule_for(size_t bytes) const;

  std::vector<Rule> rules_;
};

}  // namespace easyddl
