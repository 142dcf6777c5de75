// Environment variables.
#pragma once

#include <cstdlib>
#include <string>

namespace easyddl {

// The value of an environment variable; empty if it is not set.
inline std::string environment_variable(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? "" : text;
}

}  // namespace easyddl
