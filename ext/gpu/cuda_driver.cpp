#include "gpu/cuda_driver.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <mutex>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/environment.h"

namespace easyddl {
namespace {

constexpr const char* kCudaFile = "libcuda.so.1";
constexpr const char* kNcclFile = "libnccl.so.2";
constexpr int kOldestNccl = 21403;  // the first whose communicators need not block

constexpr const char* kInstallNccl =
    "`pip install nvidia-nccl-cu12` (or nvidia-nccl-cu13, by the version of CUDA that the "
    "framework uses) brings a new one; EASYDDL_NCCL_PATH names another's file or folder. "
    "EASYDDL_GPU=host does without NCCL: gradients then go through the hosts' memory.";

std::mutex g_mutex;
std::vector<std::string> g_nccl_folders;

// The file itself, or the one of that name in a folder; empty if there is none.
std::string file_at(const std::string& path, const char* file) {
  struct stat found{};
  if (path.empty() || stat(path.c_str(), &found) != 0) return "";
  if (!S_ISDIR(found.st_mode)) return path;
  const std::string inside = path + '/' + file;
  return stat(inside.c_str(), &found) == 0 ? inside : "";
}

// A library, which stays open for good.
class Library {
 public:
  explicit Library(std::string what) : what_(std::move(what)) {}

  bool open(const std::string& file, int flags = 0) {
    if (handle_ != nullptr || file.empty()) return handle_ != nullptr;
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    // It is no news that what is not loaded yet is not there.
    if (handle_ == nullptr && (flags & RTLD_NOLOAD) == 0) complaint_ = dlerror();
    return handle_ != nullptr;
  }

  const std::string& complaint() const { return complaint_; }

  template <class F>
  void find(F*& function, const char* name, bool is_optional = false) const {
    function = reinterpret_cast<F*>(dlsym(handle_, name));
    if (function == nullptr && !is_optional) {
      throw Error(what_ + " has no function " + name + ": it is too old.");
    }
  }

 private:
  std::string what_, complaint_;
  void* handle_ = nullptr;
};

std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

std::string text_of_cuda(const CudaDriver& driver, int code) {
  const char* text = nullptr;
  if (driver.GetErrorString(code, &text) != kCudaSuccess || text == nullptr) text = "unknown error";
  return std::string(text) + " (CUDA error " + std::to_string(code) + ")";
}

CudaDriver open_cuda() {
  Library library("The CUDA driver");
  const std::string wish = environment_variable("EASYDDL_CUDA_PATH");
  if (!wish.empty() && !library.open(file_at(wish, kCudaFile))) {
    throw Error("EASYDDL_CUDA_PATH must name the CUDA driver's library or its folder. " +
                library.complaint() + " Received: '" + wish + "'");
  }
  library.open(kCudaFile, RTLD_NOLOAD);
  if (!library.open(kCudaFile)) {
    throw Error(std::string("Arrays are said to lie on a GPU, but the CUDA driver (") + kCudaFile +
                ") cannot be opened: " + library.complaint() +
                ". Install NVIDIA's driver; in a container, start it with its GPUs.");
  }
  CudaDriver d;
  library.find(d.Init.function, "cuInit");
  library.find(d.DriverGetVersion.function, "cuDriverGetVersion");
  library.find(d.GetErrorString.function, "cuGetErrorString");
  library.find(d.DeviceGetCount.function, "cuDeviceGetCount");
  library.find(d.DeviceGet.function, "cuDeviceGet");
  library.find(d.DeviceGetName.function, "cuDeviceGetName");
  // That of the instance, where a GPU is divided.
  library.find(d.DeviceGetUuid.function, "cuDeviceGetUuid_v2", true);
  if (!d.DeviceGetUuid) library.find(d.DeviceGetUuid.function, "cuDeviceGetUuid");
  library.find(d.DeviceGetPCIBusId.function, "cuDeviceGetPCIBusId");
  library.find(d.DevicePrimaryCtxRetain.function, "cuDevicePrimaryCtxRetain");
  library.find(d.CtxGetCurrent.function, "cuCtxGetCurrent");
  library.find(d.CtxSetCurrent.function, "cuCtxSetCurrent");
  library.find(d.CtxGetDevice.function, "cuCtxGetDevice");
  library.find(d.PointerGetAttribute.function, "cuPointerGetAttribute");
  library.find(d.MemAlloc.function, "cuMemAlloc_v2");
  library.find(d.MemFree.function, "cuMemFree_v2");
  library.find(d.MemHostAlloc.function, "cuMemHostAlloc");
  library.find(d.MemFreeHost.function, "cuMemFreeHost");
  library.find(d.MemcpyDtoHAsync.function, "cuMemcpyDtoHAsync_v2");
  library.find(d.MemcpyHtoDAsync.function, "cuMemcpyHtoDAsync_v2");
  library.find(d.MemcpyDtoDAsync.function, "cuMemcpyDtoDAsync_v2");
  library.find(d.MemsetD8Async.function, "cuMemsetD8Async");
  library.find(d.StreamCreate.function, "cuStreamCreate");
  library.find(d.StreamDestroy.function, "cuStreamDestroy_v2");
  library.find(d.StreamIsCapturing.function, "cuStreamIsCapturing");
  library.find(d.ThreadExchangeStreamCaptureMode.function, "cuThreadExchangeStreamCaptureMode");
  library.find(d.EventCreate.function, "cuEventCreate");
  library.find(d.EventDestroy.function, "cuEventDestroy_v2");
  library.find(d.EventRecord.function, "cuEventRecord");
  library.find(d.EventQuery.function, "cuEventQuery");
  library.find(d.StreamWaitEvent.function, "cuStreamWaitEvent");
  const int code = d.Init(0);
  if (code != kCudaSuccess) throw Error("cuInit failed: " + text_of_cuda(d, code));
  return d;
}

void find_nccl(Library& library) {
  const std::string wish = environment_variable("EASYDDL_NCCL_PATH");
  if (!wish.empty()) {
    if (library.open(file_at(wish, kNcclFile))) return;
    throw Error("EASYDDL_NCCL_PATH must name NCCL's library (" + std::string(kNcclFile) +
                ") or its folder. " + library.complaint() + " Received: '" + wish + "'");
  }
  // The framework's own copy, if it has loaded one: two would share neither memory nor settings.
  if (library.open(kNcclFile, RTLD_NOLOAD)) return;
  for (const std::string& folder : g_nccl_folders) {
    if (library.open(file_at(folder, kNcclFile))) return;
  }
  if (library.open(kNcclFile)) return;
  throw Error(std::string("Gradients lie on GPUs, but NCCL (") + kNcclFile +
              ") is not to be found: " + library.complaint() + ". " + kInstallNccl);
}

NcclLibrary open_nccl() {
  cuda();  // first: NCCL opens it too
  Library library("NCCL");
  find_nccl(library);
  NcclLibrary n;
  library.find(n.GetVersion.function, "ncclGetVersion");
  n.path = path_of(reinterpret_cast<void*>(n.GetVersion.function));
  n.GetVersion(&n.version);
  if (n.version < kOldestNccl) {
    throw Error("NCCL " + nccl_version_text(n.version) + " (" + n.path +
                ") is too old: easyddl needs " + nccl_version_text(kOldestNccl) + " or later. " +
                kInstallNccl);
  }
  library.find(n.GetUniqueId.function, "ncclGetUniqueId");
  library.find(n.CommInitRankConfig.function, "ncclCommInitRankConfig");
  library.find(n.CommAbort.function, "ncclCommAbort");
  library.find(n.CommGetAsyncError.function, "ncclCommGetAsyncError");
  library.find(n.GroupStart.function, "ncclGroupStart");
  library.find(n.GroupEnd.function, "ncclGroupEnd");
  library.find(n.AllReduce.function, "ncclAllReduce");
  library.find(n.ReduceScatter.function, "ncclReduceScatter");
  library.find(n.AllGather.function, "ncclAllGather");
  library.find(n.Reduce.function, "ncclReduce");
  library.find(n.Broadcast.function, "ncclBroadcast");
  library.find(n.RedOpCreatePreMulSum.function, "ncclRedOpCreatePreMulSum");
  library.find(n.RedOpDestroy.function, "ncclRedOpDestroy");
  library.find(n.GetErrorString, "ncclGetErrorString");
  library.find(n.GetLastError, "ncclGetLastError");
  return n;
}

}  // namespace

// A library that could not be opened is looked for again: an exception leaves the static unset.
const CudaDriver& cuda() {
  static const CudaDriver driver = open_cuda();
  return driver;
}

const NcclLibrary& nccl() {
  static const NcclLibrary library = [] {
    const std::lock_guard<std::mutex> lock(g_mutex);
    return open_nccl();
  }();
  return library;
}

void look_for_nccl_in(std::vector<std::string> folders) {
  const std::lock_guard<std::mutex> lock(g_mutex);
  g_nccl_folders = std::move(folders);
}

std::string nccl_version_text(int version) {
  return std::to_string(version / 10000) + '.' + std::to_string(version / 100 % 100) + '.' +
         std::to_string(version % 100);
}

std::vector<std::pair<std::string, std::string>> gpu_versions() {
  int version = 0, count = 0;
  EASYDDL_CUDA(DriverGetVersion, &version);
  EASYDDL_CUDA(DeviceGetCount, &count);
  std::vector<std::pair<std::string, std::string>> lines{
      {"CUDA driver", std::to_string(version / 1000) + '.' + std::to_string(version / 10 % 100)}};
  for (int i = 0; i < count; ++i) {
    int device = 0;
    char name[256] = {};
    EASYDDL_CUDA(DeviceGet, &device, i);
    EASYDDL_CUDA(DeviceGetName, name, sizeof name - 1, device);
    lines.emplace_back("GPU " + std::to_string(i), name);
  }
  lines.emplace_back("NCCL", nccl_version_text(nccl().version) + " (" + nccl().path + ")");
  return lines;
}

void check_cuda(int code, const char* call) {
  if (code == kCudaSuccess) return;
  throw Error(std::string(call) + " failed: " + text_of_cuda(cuda(), code));
}

}  // namespace easyddl
