#include "mpi/requests.h"

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {

// Tests one request after the other. MPI_Testall would not raise an error on one of our
// communicators, so that MPI would end the job, with a text that only refers to a status. Stops at
// the first request that is still active.
bool have_ended(MPI_Request* requests, int count) {
  for (int i = 0; i < count; ++i) {
    if (requests[i] == MPI_REQUEST_NULL) continue;
    int flag = 0;
    EASYDDL_MPI(MPI_Test, &requests[i], &flag, MPI_STATUS_IGNORE);
    if (flag == 0) return false;
  }
  return true;
}

void wait_requests(MPI_Request* requests, int count, bool cores_are_shared, const Idle& idle) {
  poll([&] { return have_ended(requests, count); }, cores_are_shared, idle);
}

}  // namespace easyddl
