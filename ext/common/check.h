// Error, and the checks that turn a failing call of MPI or the system into one.
#pragma once

#include <stdexcept>
#include <string>

namespace easyddl {

// The one exception of the extension; Python sees it as `easyddl._core.Error`.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Throws an Error naming `call` and MPI's own text for `code` unless it is MPI_SUCCESS.
void check_mpi(int code, const char* call);

// Throws an Error naming `call` and errno's text if `result` is negative, else returns it.
long check_system(long result, const std::string& call);

}  // namespace easyddl

#define EASYDDL_MPI(call, ...) ::easyddl::check_mpi(call(__VA_ARGS__), #call)
