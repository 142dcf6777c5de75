// How long a rank waits for others.
#pragma once

#include <string>

namespace easyddl {

// In seconds; 0 means never.
struct Deadlines {
  double warn;   // until a rank that waits asks the others where they stand, and says so
  double abort;  // until it fails
};

// Seconds in words, without a fraction.
std::string rounded(double seconds);

}  // namespace easyddl
