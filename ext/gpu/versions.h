// The versions of what GPUs need.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace easyddl {

// What `easyddl doctor` shows: pairs of a name and a text. Opens both libraries.
std::vector<std::pair<std::string, std::string>> gpu_versions();

}  // namespace easyddl
