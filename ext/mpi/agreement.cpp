#include "mpi/agreement.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>

#include "common/rank_name.h"
#include "mpi/comm.h"

namespace easyddl {

void agree_on_failure(MPI_Comm comm, const std::optional<std::string>& problem) {
  const int rank = rank_in(comm), size = size_in(comm);
  int first = problem ? rank : size;
  // The fences order accesses to shared memory: data that a rank wrote before this is visible to
  // all ranks after it. MPI guarantees that only for its own buffers.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, comm);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (first == size) return;
  throw AgreedError(broadcast_text(comm, problem.value_or(""), first));
}

std::string broadcast_text(MPI_Comm comm, std::string text, int root) {
  uint64_t length = text.size();
  EASYDDL_MPI(MPI_Bcast, &length, 1, MPI_UINT64_T, root, comm);
  text.resize(length);
  EASYDDL_MPI(MPI_Bcast, text.data(), static_cast<int>(length), MPI_CHAR, root, comm);
  return text;
}

std::string describe_failure(const std::string& problem) {
  char host[256] = {};
  if (gethostname(host, sizeof host - 1) != 0) host[0] = '\0';
  return capitalized(rank_on_host(rank_in(MPI_COMM_WORLD), host)) + " failed: " + problem;
}

}  // namespace easyddl
