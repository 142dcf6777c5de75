#include "gpu/nccl_library.h"

#include <mutex>
#include <utility>

#include "common/check.h"
#include "common/environment.h"

namespace easyddl {
namespace {

constexpr const char* kNcclFile = "libnccl.so.2";
constexpr int kOldestNccl = 21403;  // the first with non-blocking communicators

constexpr const char* kInstallNccl =
    "Install NCCL with `pip install nvidia-nccl-cu12` (or nvidia-nccl-cu13, by the version of CUDA "
    "that the framework uses), or set EASYDDL_NCCL_PATH to the file or folder of another copy. "
    "With "
    "EASYDDL_GPU=host NCCL is not needed: gradients are then reduced in host memory.";

std::mutex g_mutex;
std::vector<std::string> g_nccl_folders;

void find_nccl(DynamicLibrary& library) {
  const std::string path = environment_variable("EASYDDL_NCCL_PATH");
  if (!path.empty()) {
    if (library.open(file_at(path, kNcclFile))) return;
    throw Error("EASYDDL_NCCL_PATH must name NCCL's library (" + std::string(kNcclFile) +
                ") or its folder. " + library.error() + " Received: '" + path + "'");
  }
  // Use the framework's copy if one is loaded, because two copies would share neither memory nor
  // settings.
  if (library.open(kNcclFile, RTLD_NOLOAD)) return;
  for (const std::string& folder : g_nccl_folders) {
    if (library.open(file_at(folder, kNcclFile))) return;
  }
  if (library.open(kNcclFile)) return;
  throw Error(std::string("Gradients are in GPU memory, but NCCL (") + kNcclFile +
              ") cannot be found: " + library.error() + ". " + kInstallNccl);
}

NcclLibrary open_nccl() {
  const std::lock_guard<std::mutex> lock(g_mutex);
  DynamicLibrary library("NCCL");
  find_nccl(library);
  NcclLibrary n;
  library.find(n.GetVersion, "ncclGetVersion");
  n.path = path_of(reinterpret_cast<void*>(n.GetVersion));
  n.GetVersion(&n.version);
  if (n.version < kOldestNccl) {
    throw Error("NCCL " + nccl_version_text(n.version) + " (" + n.path +
                ") is too old: easyddl needs " + nccl_version_text(kOldestNccl) + " or later. " +
                kInstallNccl);
  }
  library.find(n.GetUniqueId, "ncclGetUniqueId");
  library.find(n.CommInitRankConfig, "ncclCommInitRankConfig");
  library.find(n.CommAbort, "ncclCommAbort");
  library.find(n.CommGetAsyncError, "ncclCommGetAsyncError");
  library.find(n.GroupStart, "ncclGroupStart");
  library.find(n.GroupEnd, "ncclGroupEnd");
  library.find(n.AllReduce, "ncclAllReduce");
  library.find(n.ReduceScatter, "ncclReduceScatter");
  library.find(n.AllGather, "ncclAllGather");
  library.find(n.Reduce, "ncclReduce");
  library.find(n.Broadcast, "ncclBroadcast");
  library.find(n.RedOpCreatePreMulSum, "ncclRedOpCreatePreMulSum");
  library.find(n.RedOpDestroy, "ncclRedOpDestroy");
  library.find(n.GetErrorString, "ncclGetErrorString");
  library.find(n.GetLastError, "ncclGetLastError");
  return n;
}

}  // namespace

// After an exception the next call tries again, because the static is still uninitialized.
const NcclLibrary& nccl() {
  cuda();  // before NCCL, which opens the driver itself
  static const NcclLibrary library = open_nccl();
  return library;
}

std::pair<std::string, std::string> nccl_version_and_path() {
  const NcclLibrary library = open_nccl();
  return {nccl_version_text(library.version), library.path};
}

void set_nccl_folders(std::vector<std::string> folders) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_nccl_folders = std::move(folders);
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.' +
         std::to_string(version % 100);
}

}  // namespace easyddl
