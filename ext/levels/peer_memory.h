// The memory of another process of this machine.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "arrays/segment_list.h"

namespace easyddl {

// Reads a process's arrays, and writes them, by one copy of the kernel's and without that process
// doing anything. The kernel allows it to whom it would let debug the process.
class PeerMemory {
 public:
  // `segments` are addresses in that process.
  PeerMemory(pid_t process, SegmentList segments)
      : process_(process), segments_(std::move(segments)) {}

  // Copies the bytes [begin, end) of its inputs to `to`, or the same of `from`'s outputs to its
  // own outputs. False if the process is gone; other failures throw.
  bool read(size_t begin, size_t end, uint8_t* to) const;
  bool write(size_t begin, size_t end, const SegmentList& from) const;

  // Whether the kernel can reach all arrays of `segments`, which are this process's. It cannot
  // where they are a device's memory, or memory that a driver has pinned for one.
  static bool is_reachable(const SegmentList& segments);

  // Whether the word at `address` of another process holds `value`, and can be written.
  static bool holds(pid_t process, uint64_t* address, uint64_t value);

 private:
  pid_t process_;
  SegmentList segments_;
};

}  // namespace easyddl
