// What a CUDA-aware MPI says of itself, for tests with one that is not: to be loaded before MPI.
//
// The first STAND_IN_AWARE ranks are told that MPI takes memory of GPUs.
#include <cstdlib>
#include <initializer_list>

namespace {

int number(const char* name) {
  const char* text = std::getenv(name);
  return text == nullptr ? -1 : std::atoi(text);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) int MPIX_Query_cuda_support() {
  int rank = -1;
  for (const char* name : {"PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"}) {
    if (rank < 0) rank = number(name);
  }
  return rank < number("STAND_IN_AWARE") ? 1 : 0;
}
