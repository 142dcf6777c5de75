// Rules of algorithms by level and size.
#include "algorithms/algorithm_rules.h"

#include <string>

#include "common/check.h"
#include "trial.h"

namespace {

using namespace easyddl;

bool is(const AlgorithmRules& rules, size_t level, size_t bytes, InterHostAlgorithm expected) {
  return rules.algorithm(level, bytes) == expected;
}

// Returns the error of a text; empty if there is none.
std::string refusal(const std::string& text, size_t levels) {
  try {
    AlgorithmRules(text, levels);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST(without_rules_the_engine_chooses) {
  EXPECT(!AlgorithmRules("", 3).algorithm(0, 0).has_value());
}

TEST(one_algorithm_is_that_of_all_levels_and_sizes) {
  const AlgorithmRules rules("ring", 3);
  for (size_t level : {0, 1, 2}) {
    for (size_t bytes : {0, 1, 1 << 30}) EXPECT(is(rules, level, bytes, InterHostAlgorithm::ring));
  }
}

TEST(a_rule_holds_from_its_number_of_bytes) {
  const AlgorithmRules rules("whole, 1000 : direct / ring, 2000:halving", 2);
  for (size_t level : {0, 1}) {
    EXPECT(is(rules, level, 999, InterHostAlgorithm::whole));
    EXPECT(is(rules, level, 2000, InterHostAlgorithm::halving));
  }
  for (size_t bytes : {1000, 1999}) {
    EXPECT(is(rules, 0, bytes, InterHostAlgorithm::direct));
    EXPECT(is(rules, 1, bytes, InterHostAlgorithm::ring));
  }
}

TEST(a_flat_rule_leaves_the_algorithm_to_the_engine) {
  const AlgorithmRules rules("flat,1000:direct/ring", 2);
  EXPECT(rules.is_flat(999) && !rules.algorithm(1, 999).has_value());
  EXPECT(!rules.is_flat(1000) && is(rules, 1, 1000, InterHostAlgorithm::ring));
  EXPECT(!AlgorithmRules("", 2).is_flat(0));
  EXPECT_CONTAINS(refusal("flat/ring", 2), "Received: 'flat/ring'");
}

TEST(an_unknown_algorithm_is_refused) {
  EXPECT_CONTAINS(refusal("tree", 1),
                  "EASYDDL_ALGORITHM must be one of whole, direct, halving, ring and flat");
  EXPECT_CONTAINS(refusal("tree", 1), "'tree'");
}

TEST(a_rule_may_have_more_algorithms_than_there_are_levels_but_not_fewer) {
  EXPECT(is(AlgorithmRules("direct/ring/whole", 2), 1, 7, InterHostAlgorithm::ring));
  EXPECT_CONTAINS(refusal("whole,5:direct/ring", 3),
                  "There are 3 levels between hosts, but '5:direct/ring' has 2 algorithms.");
}
