#include "runtime/deadlines.h"

namespace easyddl {

std::string rounded(double seconds) { return std::to_string(static_cast<long>(seconds + 0.5)); }

}  // namespace easyddl
