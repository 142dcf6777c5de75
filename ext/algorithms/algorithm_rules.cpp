#include "algorithms/algorithm_rules.h"

#include <algorithm>

#include "common/check.h"
#include "common/text.h"

namespace easyddl {
namespace {

constexpr size_t kMostDigits = 18;  // of a number of bytes
constexpr const char* kFlat = "flat";

bool is_number(const std::string& text) {
  return !text.empty() && text.size() <= kMostDigits &&
         text.find_first_not_of("0123456789") == std::string::npos;
}

}  // namespace

AlgorithmRules::AlgorithmRules(const std::string& text, size_t levels) {
  const auto require = [&text](bool is_right, const std::string& what) {
    if (is_right) return;
    throw Error(
        "EASYDDL_ALGORITHM must be one of whole, direct, halving, ring and flat, or rules such as "
        "flat,100000:direct/ring. " +
        what + "Received: '" + text + "'");
  };
  if (text.empty()) return;
  for (const std::string& each : split(text, ',')) {
    const std::vector<std::string> parts = split(each, ':');
    const bool has_number = parts.size() > 1;
    require(parts.size() <= 2, "");
    require(has_number != rules_.empty(),
            "The first rule has no number of bytes, and each other has one. ");
    Rule rule{0, {}};
    if (has_number) {
      require(is_number(parts[0]), "'" + parts[0] + "' is not a number of bytes. ");
      rule.from = std::stoul(parts[0]);
      require(rule.from > rules_.back().from, "The numbers of bytes must ascend. ");
    }
    if (parts.back() == kFlat) {
      rules_.push_back(std::move(rule));
      continue;
    }
    for (const std::string& name : split(parts.back(), '/')) {
      const std::optional<InterHostAlgorithm> algorithm = inter_host_algorithm_named(name);
      require(algorithm.has_value(), "");
      rule.by_level.push_back(*algorithm);
    }
    require(rule.by_level.size() == 1 || rule.by_level.size() >= levels,
            "There are " + std::to_string(levels) + " levels between hosts, but '" + each +
                "' has " + std::to_string(rule.by_level.size()) + " algorithms. ");
    rules_.push_back(std::move(rule));
  }
}

// Returns null without rules.
const AlgorithmRules::Rule* AlgorithmRules::rule_for(size_t bytes) const {
  const auto after = std::find_if(rules_.begin(), rules_.end(),
                                  [bytes](const Rule& rule) { return rule.from > bytes; });
  return after == rules_.begin() ? nullptr : &*std::prev(after);
}

std::optional<InterHostAlgorithm> AlgorithmRules::algorithm(size_t level, size_t bytes) const {
  const Rule* rule = rule_for(bytes);
  if (rule == nullptr || rule->by_level.empty()) return std::nullopt;
  return rule->by_level[std::min(level, rule->by_level.size() - 1)];
}

bool AlgorithmRules::is_flat(size_t bytes) const {
  const Rule* rule = rule_for(bytes);
  return rule != nullptr && rule->by_level.empty();
}

}  // namespace easyddl
