// Limits of a rank's waits for other ranks.
#pragma once

#include <string>

namespace easyddl {

// In seconds; 0 means never.
struct Deadlines {
  double warn;   // until a waiting rank asks the others for their state, and prints a warning
  double abort;  // until its wait fails
};

// Returns the seconds as text, rounded to an integer.
inline std::string rounded(double seconds) {
  return std::to_string(static_cast<long>(seconds + 0.5));
}

}  // namespace easyddl
