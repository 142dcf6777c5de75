#include "common/check.h"

#include <mpi.h>

#include <cerrno>
#include <cstring>

namespace easyddl {

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  if (MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  throw Error(std::string(call) + " failed: " + std::string(text, static_cast<size_t>(length)));
}

long check_system(long result, const std::string& call) {
  if (result >= 0) return result;
  throw Error(call + " failed: " + std::strerror(errno));
}

}  // namespace easyddl
