#include "collectives/message_tags.h"

#include <string>

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

// Lower tags are for messages that belong to no easyddl communicator.
constexpr int kFirst = 16;

}  // namespace

int first_tag(MPI_Comm comm, size_t number) {
  void* bound = nullptr;
  int found = 0;
  EASYDDL_MPI(MPI_Comm_get_attr, comm, MPI_TAG_UB, &bound, &found);
  const int most = found != 0 ? *static_cast<int*>(bound) : 32767;
  const size_t numbers = static_cast<size_t>((most - kFirst) / kTagsOfEach);
  // Reused tags might be those of a communicator that is still in use.
  if (number >= numbers) {
    throw Error("This MPI supports message tags up to " + std::to_string(most) +
                " (MPI_TAG_UB), which is enough for " + std::to_string(numbers) +
                " easyddl communicators in a job, and all of them have been used: each "
                "model.fit() takes one, and each SyncBatchNormalization in it takes two. Start a "
                "new job, or use another MPI.");
  }
  return kFirst + static_cast<int>(number) * kTagsOfEach;
}

}  // namespace easyddl
