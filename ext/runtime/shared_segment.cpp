#include "runtime/shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "common/check.h"
#include "mpi/agreement.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

constexpr size_t kLeastBytes = 64;

// A file descriptor, closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// The location of member 0's memory for the other members. The nonce proves that the file that they
// opened under this process id is that memory, and not one in another container.
struct Address {
  int64_t pid;
  int64_t fd;
  uint64_t nonce[2];
};

Descriptor create_memory(size_t bytes) {
  Descriptor memory(static_cast<int>(
      check_system(memfd_create("easyddl", MFD_CLOEXEC), "memfd_create (shared memory)")));
  check_system(ftruncate(memory.get(), static_cast<off_t>(bytes)),
               "ftruncate to " + std::to_string(bytes) + " bytes of shared memory");
  return memory;
}

void reserve(const Descriptor& memory, const std::vector<SharedSegment::Range>& ranges) {
  for (const auto& [begin, length] : ranges) {
    int failure = 0;
    do {  // a signal, such as a profiler's, interrupts it
      failure =
          posix_fallocate(memory.get(), static_cast<off_t>(begin), static_cast<off_t>(length));
    } while (failure == EINTR);
    errno = failure;
    check_system(-failure,
                 "posix_fallocate of " + std::to_string(length) + " bytes of shared memory");
  }
}

// Returns whether `path` is a link to memory of create_memory. Nothing else is opened.
bool is_our_memory(const std::string& path) {
  char target[64] = {};
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  return length > 0 && std::string(target).rfind("/memfd:easyddl", 0) == 0;
}

void* map(const Descriptor& memory, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (data == MAP_FAILED) {
    check_system(-1, "mmap of " + std::to_string(bytes) + " bytes of shared memory");
  }
  return data;
}

std::vector<SharedSegment::Range> whole_range(MPI_Comm comm, size_t bytes) {
  if (rank_in(comm) != 0) return {};
  return {{0, std::max(bytes, kLeastBytes)}};
}

}  // namespace

SharedSegment::SharedSegment(MPI_Comm comm, size_t bytes)
    : SharedSegment(comm, bytes, whole_range(comm, bytes)) {}

SharedSegment::SharedSegment(MPI_Comm comm, size_t bytes, const std::vector<Range>& ranges)
    : bytes_(std::max(bytes, kLeastBytes)) {
  const bool creates = rank_in(comm) == 0;
  Address address{};
  Descriptor memory;
  // Runs a step on all members. An exception is thrown on all of them; the memory is unmapped here,
  // because a destructor does not run after an exception in the constructor.
  const auto together = [&](auto step) {
    try {
      all_or_none(comm, step);
    } catch (const Error&) {
      unmap();
      throw;
    }
  };
  together([&] {
    if (!creates) return;
    memory = create_memory(bytes_);
    reserve(memory, ranges);
    data_ = map(memory, bytes_);
    address.pid = getpid();
    address.fd = memory.get();
    check_system(getrandom(address.nonce, sizeof address.nonce, 0), "getrandom");
    std::memcpy(data_, address.nonce, sizeof address.nonce);
  });
  EASYDDL_MPI(MPI_Bcast, &address, sizeof address, MPI_BYTE, 0, comm);
  together([&] {
    if (creates) return;
    const std::string path =
        "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
    if (is_our_memory(path)) memory = Descriptor(open(path.c_str(), O_RDWR | O_CLOEXEC));
    if (memory.get() >= 0) data_ = map(memory, bytes_);
    if (data_ != nullptr && std::memcmp(data_, address.nonce, sizeof address.nonce) != 0) unmap();
  });
  // No member continues until all have opened the descriptor and compared the nonce.
  int shared = data_ != nullptr ? 1 : 0;
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, comm);
  if (shared == 0) {
    unmap();
    return;
  }
  together([&] {
    if (creates) {
      std::memset(data_, 0, sizeof address.nonce);
    } else {
      reserve(memory, ranges);
    }
  });
}

SharedSegment::~SharedSegment() { unmap(); }

void SharedSegment::unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace easyddl
