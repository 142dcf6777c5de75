#include "common/rank_name.h"

#include <cctype>

namespace easyddl {

std::string rank_on_host(int rank, const std::string& host) {
  return "rank " + std::to_string(rank) + " on host " + host;
}

std::string capitalized(std::string text) {
  if (!text.empty()) {
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  }
  return text;
}

}  // namespace easyddl
