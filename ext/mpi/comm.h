// An MPI communicator.
#pragma once

#include "mpi/mpi.h"

namespace easyddl {

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
  int rank() const;
  int size() const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace easyddl
