// Memory that the ranks of one host share.
#pragma once

#include <cstddef>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// A memfd made by member 0 of a communicator and mapped by all of its members. It has no name
// in any file system: only this user's processes can open it, and it is gone with the last
// process that maps it, however that process ends.
class SharedSegment {
 public:
  // In bytes.
  struct Range {
    size_t begin, length;
  };

  // Collective over `comm`. Where any member cannot open member 0's memory (another machine,
  // another container, another user) no member holds any, and `data()` is null on all. If a
  // member's call to the system fails, all members throw the same Error.
  SharedSegment(MPI_Comm comm, size_t bytes);

  // The same. All pages are reserved at once: memory that runs out later would be a SIGBUS, not an
  // error. Each member reserves those of its own `ranges`: Linux takes a page from the NUMA node of
  // the process that reserves it. The first bytes must be member 0's, and all must be somebody's.
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
