// Memory that the ranks of one host share.
#pragma once

#include <mpi.h>

#include <cstddef>

namespace easyddl {

// A memfd made by member 0 of a communicator and mapped by all of its members. It has no name
// in any file system: only this user's processes can open it, and it is gone with the last
// process that maps it, however that process ends.
class SharedSegment {
 public:
  // Collective over `comm`. Where any member cannot open member 0's memory (another machine,
  // another container, another user) no member holds any, and `data()` is null on all.
  SharedSegment(MPI_Comm comm, size_t bytes);
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  void* data() const { return data_; }

 private:
  void unmap();

  void* data_ = nullptr;
  size_t bytes_;
};

}  // namespace easyddl
