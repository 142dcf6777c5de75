// Parts of texts, and texts of fixed length.
#pragma once

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace easyddl {

// Returns the parts of a text between separators, without spaces around them.
std::vector<std::string> split(const std::string& text, char separator);

// Copies as much of a text as the array holds, and fills the rest with zeros, of which there is at
// least one.
template <size_t N>
void store(std::array<char, N>& destination, const std::string& text) {
  destination = {};
  std::memcpy(destination.data(), text.data(), std::min(text.size(), N - 1));
}

}  // namespace easyddl
