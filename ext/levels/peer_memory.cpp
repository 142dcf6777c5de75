#include "levels/peer_memory.h"

#include <linux/capability.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "common/check.h"

namespace easyddl {
namespace {

// The most parts that the kernel accepts on either side of one call.
constexpr size_t kMostParts = 1024;

enum class CopyDirection : long { read = SYS_process_vm_readv, write = SYS_process_vm_writev };

// System calls instead of glibc's functions, because sanitizers intercept those, and treat the
// addresses of the other process as addresses of this one.
long copy(CopyDirection direction, pid_t process, const std::vector<iovec>& here,
          const std::vector<iovec>& there) {
  return syscall(static_cast<long>(direction), process, here.data(), here.size(), there.data(),
                 there.size(), 0UL);
}

iovec part(const void* address, size_t bytes) { return {const_cast<void*>(address), bytes}; }

// Copies all bytes or throws an Error. Returns false if the process no longer exists.
bool copy_all(CopyDirection direction, const PeerProcess& process, const std::vector<iovec>& here,
              const std::vector<iovec>& there, size_t bytes) {
  const long copied = copy(direction, process.id, here, there);
  if (copied == static_cast<long>(bytes)) return true;
  if (copied < 0 && errno == ESRCH) return false;
  const std::string call =
      direction == CopyDirection::read
          ? "Reading the memory of " + process.name + " (process_vm_readv)"
          : "Writing to the memory of " + process.name + " (process_vm_writev)";
  check_system(copied, call);
  throw Error(call + " ended after " + std::to_string(copied) + " of " + std::to_string(bytes) +
              " bytes.");
}

}  // namespace

ProcessCredentials ProcessCredentials::of_this_process() {
  uid_t users[3] = {};
  gid_t groups[3] = {};
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3] = {};
  check_system(getresuid(&users[0], &users[1], &users[2]), "getresuid");
  check_system(getresgid(&groups[0], &groups[1], &groups[2]), "getresgid");
  check_system(syscall(SYS_capget, &header, capabilities), "capget");
  const long dumpable = check_system(prctl(PR_GET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_GET_DUMPABLE)");
  return {{static_cast<uint64_t>(dumpable), users[0], users[1], users[2], groups[0], groups[1],
           groups[2], capabilities[0].effective, capabilities[1].effective,
           capabilities[0].permitted, capabilities[1].permitted}};
}

bool PeerMemory::read(size_t begin, size_t end, uint8_t* to) const {
  std::vector<iovec> there;
  segments_.for_each(begin, end, [&](const uint8_t* in, uint8_t*, size_t, size_t bytes) {
    there.push_back(part(in, bytes));
  });
  if (there.size() > kMostParts) {
    const size_t middle = begin + (end - begin) / 2;
    return read(begin, middle, to) && read(middle, end, to + (middle - begin));
  }
  return copy_all(CopyDirection::read, *process_, {part(to, end - begin)}, there, end - begin);
}

bool PeerMemory::write(size_t begin, size_t end, const SegmentList& from) const {
  std::vector<iovec> here, there;
  const auto list_outputs = [&](const SegmentList& segments, std::vector<iovec>& parts) {
    segments.for_each(begin, end, [&](const uint8_t*, uint8_t* out, size_t, size_t bytes) {
      parts.push_back(part(out, bytes));
    });
  };
  list_outputs(from, here);
  list_outputs(segments_, there);
  if (std::max(here.size(), there.size()) > kMostParts) {
    const size_t middle = begin + (end - begin) / 2;
    return write(begin, middle, from) && write(middle, end, from);
  }
  return copy_all(CopyDirection::write, *process_, here, there, end - begin);
}

// Tests one byte of each array, which is enough because memory that cannot be copied is a separate
// mapping.
bool PeerMemory::is_reachable(const SegmentList& segments) {
  std::vector<iovec> there;
  std::vector<uint8_t> bytes(kMostParts);
  bool all = true;
  const auto flush = [&] {
    if (there.empty()) return;
    const long count = static_cast<long>(there.size());
    all = all &&
          copy(CopyDirection::read, getpid(), {part(bytes.data(), bytes.size())}, there) == count;
    there.clear();
  };
  segments.for_each(0, segments.bytes(), [&](const uint8_t* in, uint8_t* out, size_t, size_t) {
    there.push_back(part(in, 1));
    if (out != in) there.push_back(part(out, 1));
    if (there.size() + 1 >= kMostParts) flush();
  });
  flush();
  return all;
}

bool PeerMemory::holds(pid_t process, uint64_t* address, uint64_t value) {
  uint64_t found = 0;
  const std::vector<iovec> here{part(&found, sizeof found)};
  const std::vector<iovec> there{part(address, sizeof *address)};
  const long word = sizeof found;
  return copy(CopyDirection::read, process, here, there) == word && found == value &&
         copy(CopyDirection::write, process, here, there) == word;
}

}  // namespace easyddl
