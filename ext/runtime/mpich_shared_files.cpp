#include "runtime/mpich_shared_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

bool is_of_mpich(const std::string& path) { return path.rfind("/dev/shm/mpich_shm_", 0) == 0; }

// Whether it is the file that was mapped, and the user's own.
bool is_same(const std::string& path, ino_t inode) {
  struct stat found;
  return lstat(path.c_str(), &found) == 0 && found.st_ino == inode && found.st_uid == geteuid() &&
         S_ISREG(found.st_mode);
}

}  // namespace

void delete_shared_files(MPI_Comm machine) {
  EASYDDL_MPI(MPI_Barrier, machine);  // all have come out of MPI_Init
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    std::istringstream words(line);
    std::string addresses, permissions, offset, device, path, mark;
    ino_t inode = 0;
    words >> addresses >> permissions >> offset >> device >> inode >> path >> mark;
    const bool is_there = is_of_mpich(path) && mark.empty();  // else it says "(deleted)"
    if (is_there && is_same(path, inode)) unlink(path.c_str());
  }
}

}  // namespace easyddl
