#include "collectives/fingerprint.h"

#include <algorithm>
#include <map>
#include <sstream>

namespace easyddl {
namespace {

constexpr size_t kShown = 240;

// FNV-1a (Fowler, Noll, Vo). Never returns 0, which means "the ranks of this host disagree".
uint64_t fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  return hash == 0 ? 1 : hash;
}

size_t first_difference(const std::vector<std::string>& texts) {
  size_t at = texts.front().size();
  for (const std::string& text : texts) {
    const auto ends =
        std::mismatch(text.begin(), text.end(), texts.front().begin(), texts.front().end());
    if (ends.first != text.end() || ends.second != texts.front().end()) {
      at = std::min(at, static_cast<size_t>(ends.first - text.begin()));
    }
  }
  return at;
}

// Shortens a long text, such as a list of many gradients, to the part around the first difference.
std::string excerpt(const std::string& text, size_t difference) {
  if (text.size() <= kShown) return text;
  const size_t begin = difference > kShown / 2 ? difference - kShown / 2 : 0;
  const std::string middle = text.substr(std::min(begin, text.size()), kShown);
  return (begin > 0 ? "..." : "") + middle + (begin + kShown < text.size() ? "..." : "");
}

}  // namespace

Fingerprint::Fingerprint(std::string t) : text(std::move(t)), hash(fnv1a(text)) {}

std::string describe_disagreement(const std::vector<std::string>& texts) {
  std::map<std::string, std::vector<size_t>> ranks_of;
  for (size_t rank = 0; rank < texts.size(); ++rank) ranks_of[texts[rank]].push_back(rank);
  std::vector<std::pair<std::string, std::vector<size_t>>> groups(ranks_of.begin(), ranks_of.end());
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.second.front() < b.second.front(); });
  const size_t difference = first_difference(texts);
  std::ostringstream message;
  message << "The ranks disagree about a collective, which all of them must call alike.";
  for (const auto& [text, ranks] : groups) {
    message << (ranks.size() == 1 ? " Rank " : " Ranks ");
    for (size_t i = 0; i < ranks.size(); ++i) message << (i > 0 ? ", " : "") << ranks[i];
    message << " called " << excerpt(text, difference) << '.';
  }
  return message.str();
}

}  // namespace easyddl
