#include "shared_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>

#include "check.h"

namespace easyddl {
namespace {

// A file descriptor, closed at the end of its scope.
class Descriptor {
 public:
  explicit Descriptor(int fd = -1) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  int fd_;
};

// How the others find member 0's memory. The nonce proves that what they opened under this
// process id is that memory, not another container's.
struct Address {
  int64_t pid;
  int64_t fd;
  uint64_t nonce[2];
};

int create_memory(size_t bytes) {
  const int fd = static_cast<int>(
      check_system(memfd_create("easyddl", MFD_CLOEXEC), "memfd_create (shared memory)"));
  // Reserved at once: memory that runs out later would be a SIGBUS, not an error.
  const int failure = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (failure != 0) {
    close(fd);
    errno = failure;
    check_system(-1, "posix_fallocate of " + std::to_string(bytes) + " bytes of shared memory");
  }
  return fd;
}

// True if `path` is a link to memory made by create_memory: nothing else is ever opened.
bool is_our_memory(const std::string& path) {
  char target[64] = {};
  const ssize_t length = readlink(path.c_str(), target, sizeof target - 1);
  return length > 0 && std::string(target).rfind("/memfd:easyddl", 0) == 0;
}

void* map(int fd, size_t bytes) {
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  return data == MAP_FAILED ? nullptr : data;
}

}  // namespace

SharedSegment::SharedSegment(MPI_Comm comm, size_t bytes) : bytes_(std::max<size_t>(bytes, 64)) {
  int rank = 0;
  EASYDDL_MPI(MPI_Comm_rank, comm, &rank);
  Address address{};
  const Descriptor mine(rank == 0 ? create_memory(bytes_) : -1);
  if (rank == 0) {
    address.pid = getpid();
    address.fd = mine.get();
    check_system(getrandom(address.nonce, sizeof address.nonce, 0), "getrandom");
    data_ = map(mine.get(), bytes_);
    if (data_ != nullptr) std::memcpy(data_, address.nonce, sizeof address.nonce);
  }
  EASYDDL_MPI(MPI_Bcast, &address, sizeof address, MPI_BYTE, 0, comm);
  if (rank != 0) {
    const std::string path =
        "/proc/" + std::to_string(address.pid) + "/fd/" + std::to_string(address.fd);
    const Descriptor theirs(is_our_memory(path) ? open(path.c_str(), O_RDWR | O_CLOEXEC) : -1);
    if (theirs.get() >= 0) data_ = map(theirs.get(), bytes_);
    if (data_ != nullptr && std::memcmp(data_, address.nonce, sizeof address.nonce) != 0) unmap();
  }
  // All have compared the nonce, and opened the descriptor, before anyone goes on.
  int shared = data_ != nullptr ? 1 : 0;
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &shared, 1, MPI_INT, MPI_MIN, comm);
  if (shared == 0) unmap();
  if (rank == 0 && data_ != nullptr) std::memset(data_, 0, sizeof address.nonce);
  EASYDDL_MPI(MPI_Barrier, comm);
}

SharedSegment::~SharedSegment() { unmap(); }

void SharedSegment::unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  data_ = nullptr;
}

}  // namespace easyddl
