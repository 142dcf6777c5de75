// A communicator of MPI.
#pragma once

#include <mpi.h>

namespace easyddl {

// An MPI communicator, freed at the end of its scope; its errors are returned, not fatal.
class Comm {
 public:
  Comm() = default;
  explicit Comm(MPI_Comm comm);
  ~Comm();
  Comm(Comm&& other) noexcept;
  Comm& operator=(Comm&& other) noexcept;
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  static Comm duplicate(MPI_Comm comm);
  static Comm split(MPI_Comm comm, int color, int key);

  MPI_Comm get() const { return comm_; }
  int rank() const;
  int size() const;

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace easyddl
