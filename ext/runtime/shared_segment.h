// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// A memfd that member 0 of a communicator creates and all members map. It has no name in any file
// system: only this user's processes can open it, and the kernel frees it with the last process
// that maps it, however that process ends.
class SharedSegment {
 public:
  // A range in bytes.
  struct Range {
    size_t begin, length;
  };

  // Collective over `comm`. If any member cannot open member 0's memory (another machine, another
  // container, another user), `data()` is null on all members. If a system call of a member fails,
  // all members throw the same Error.
  SharedSegment(MPI_Comm comm, size_t bytes);

  // The same. All pages are reserved at once, because memory that runs out later would raise SIGBUS
  // instead of an error. Each member reserves the pages of its `ranges`, because Linux takes a page
  // from the NUMA node of the process that reserves it. The ranges of all members must cover the
  // memory, and member 0's must hold the first bytes.
  SharedSegment(MPI_Comm comm, size_t bytes, const std::vector<Range>& ranges);

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
