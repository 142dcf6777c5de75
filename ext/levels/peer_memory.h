// Access to the memory of another process of this machine.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "arrays/segment_list.h"

namespace easyddl {

// A process of this machine.
struct PeerProcess {
  pid_t id;
  std::string name;  // its rank, for errors
};

// The attributes of a process that the kernel checks before it lets another process access its
// memory: whether it may be debugged, its users and groups, and its capabilities (man 2 ptrace,
// "Ptrace access mode checking").
struct ProcessCredentials {
  std::array<uint64_t, 11> values{};

  static ProcessCredentials of_this_process();
  bool operator==(const ProcessCredentials& other) const { return values == other.values; }
};

// Reads and writes the arrays of another process. The kernel copies the data once, without help of
// that process. It permits this to processes that may debug the other process.
class PeerMemory {
 public:
  // `segments` are addresses in that process. `process` must outlive this object.
  PeerMemory(const PeerProcess& process, SegmentList segments)
      : process_(&process), segments_(std::move(segments)) {}

  // `read` copies the bytes [begin, end) of the other process's inputs to `to`. `write` copies the
  // same range of `from`'s outputs to its outputs. Both return false if the process no longer
  // exists, and throw for other failures.
  bool read(size_t begin, size_t end, uint8_t* to) const;
  bool write(size_t begin, size_t end, const SegmentList& from) const;

  // Whether the kernel can copy all arrays of `segments`, which belong to this process. It cannot
  // copy a device's memory, or memory that a driver has pinned for a device.
  static bool is_reachable(const SegmentList& segments);

  // Whether the word at `address` of another process can be read and written, and holds `value`.
  static bool holds(pid_t process, uint64_t* address, uint64_t value);

 private:
  const PeerProcess* process_;
  SegmentList segments_;
};

}  // namespace easyddl
