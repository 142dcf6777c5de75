// The name of a rank in messages.
#pragma once

#include <string>

namespace easyddl {

// Returns a text such as "rank 3 on host node7".
std::string rank_on_host(int rank, const std::string& host);

// Returns the text with a capital first letter, for the beginning of a sentence.
std::string capitalized(std::string text);

}  // namespace easyddl
