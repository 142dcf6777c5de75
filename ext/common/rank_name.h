// How messages name a rank.
#pragma once

#include <string>

namespace easyddl {

// "rank 3 on host node7".
std::string rank_on_host(int rank, const std::string& host);

// The same at the beginning of a sentence.
std::string capitalized(std::string text);

}  // namespace easyddl
