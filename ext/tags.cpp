#include "tags.h"

#include "check.h"

namespace easyddl {
namespace {

// Those below are for what belongs to no number.
constexpr int kFirst = 16;

}  // namespace

int first_tag(MPI_Comm comm, size_t number) {
  void* bound = nullptr;
  int found = 0;
  EASYDDL_MPI(MPI_Comm_get_attr, comm, MPI_TAG_UB, &bound, &found);
  const int most = found != 0 ? *static_cast<int*>(bound) : 32767;
  const size_t numbers = static_cast<size_t>((most - kFirst) / kTagsOfEach);
  return kFirst + static_cast<int>(number % numbers) * kTagsOfEach;
}

}  // namespace easyddl
