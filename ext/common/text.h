// Texts that the user wrote.
#pragma once

#include <string>
#include <vector>

namespace easyddl {

// Returns the parts of a text between separators, without spaces around them.
std::vector<std::string> split(const std::string& text, char separator);

}  // namespace easyddl
