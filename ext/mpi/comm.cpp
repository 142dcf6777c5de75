#include "mpi/comm.h"

#include <utility>

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {

int rank_in(MPI_Comm comm) {
  int rank = 0;
  EASYDDL_MPI(MPI_Comm_rank, comm, &rank);
  return rank;
}

int size_in(MPI_Comm comm) {
  int size = 0;
  EASYDDL_MPI(MPI_Comm_size, comm, &size);
  return size;
}

MpiComm::MpiComm(MPI_Comm comm) : comm_(comm) {
  if (comm_ != MPI_COMM_NULL) EASYDDL_MPI(MPI_Comm_set_errhandler, comm_, MPI_ERRORS_RETURN);
}

MpiComm::~MpiComm() {
  int finalized = 0;
  mpi_functions().MPI_Finalized(&finalized);
  if (comm_ != MPI_COMM_NULL && finalized == 0) mpi_functions().MPI_Comm_free(&comm_);
}

MpiComm::MpiComm(MpiComm&& other) noexcept : comm_(std::exchange(other.comm_, MPI_COMM_NULL)) {}

MpiComm& MpiComm::operator=(MpiComm&& other) noexcept {
  std::swap(comm_, other.comm_);
  return *this;
}

MpiComm MpiComm::duplicate(MPI_Comm comm) {
  MPI_Comm result = MPI_COMM_NULL;
  EASYDDL_MPI(MPI_Comm_dup, comm, &result);
  return MpiComm(result);
}

MpiComm MpiComm::split(MPI_Comm comm, int color, int key) {
  MPI_Comm result = MPI_COMM_NULL;
  EASYDDL_MPI(MPI_Comm_split, comm, color, key, &result);
  return MpiComm(result);
}

}  // namespace easyddl
