// The exception Error, and a check of system calls that throws it.
#pragma once

#include <stdexcept>
#include <string>

namespace easyddl {

// The exception of the engine. In Python it is `easyddl._core.Error`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error with `call` and errno's text if `result` is negative, else returns `result`.
long check_system(long result, const std::string& call);

}  // namespace easyddl
