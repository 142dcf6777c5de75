// An MPI communicator.
#pragma once

#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// Return this rank's number in a communicator, and the number of its ranks.
int rank_in(MPI_Comm comm);
int size_in(MPI_Comm comm);

// Collective over `comm`. Returns the values of all ranks, in their order. Only bytes are sent.
template <class T>
std::vector<T> gather(MPI_Comm comm, const T& mine) {
  std::vector<T> all(static_cast<size_t>(size_in(comm)));
  EASYDDL_MPI(MPI_Allgather, &mine, sizeof mine, MPI_BYTE, all.data(), sizeof mine, MPI_BYTE, comm);
  return all;
}

// An MPI communicator, freed at the end of its scope. MPI returns its errors instead of ending the
// job.
class MpiComm {
 public:
  MpiComm() = default;
  explicit MpiComm(MPI_Comm comm);
  ~MpiComm();
  MpiComm(MpiComm&& other) noexcept;
  MpiComm& operator=(MpiComm&& other) noexcept;
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;

  static MpiComm duplicate(MPI_Comm comm);
  static MpiComm split(MPI_Comm comm, int color, int key);

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_in(comm_); }
  int size() const { return size_in(comm_); }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace easyddl
