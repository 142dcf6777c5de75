// Error, and the check that turns a failing call of the system into one.
#pragma once

#include <stdexcept>
#include <string>

namespace easyddl {

// The one exception of the extension; Python sees it as `easyddl._core.Error`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error naming `call` and errno's text if `result` is negative, else returns it.
long check_system(long result, const std::string& call);

}  // namespace easyddl
