#include "common/check.h"

#include <cerrno>
#include <cstring>

namespace easyddl {

long check_system(long result, const std::string& call) {
  if (result >= 0) return result;
  throw Error(call + " failed: " + std::strerror(errno));
}

}  // namespace easyddl
