// The functions of NCCL that easyddl uses. easyddl is built without NCCL. Only this file opens its
// library, at run time, when arrays are in GPU memory.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/dynamic_library.h"
#include "gpu/cuda_driver.h"

namespace easyddl {

// Handles and constants of nccl.h, which are part of NCCL's ABI.
using NcclComm = struct ncclComm*;

constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

struct NcclId {
  char bytes[128];
};

// The first fields of ncclConfig_t, as in NCCL 2.14, which introduced it. NCCL checks `size` and
// `version`, and uses its defaults for fields of later versions.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// Named as in nccl.h, without the "nccl".
struct NcclLibrary {
  int (*GetVersion)(int*) = nullptr;
  int (*GetUniqueId)(NcclId*) = nullptr;
  int (*CommInitRankConfig)(NcclComm*, int, NcclId, int, NcclConfig*) = nullptr;
  int (*CommAbort)(NcclComm) = nullptr;
  int (*CommGetAsyncError)(NcclComm, int*) = nullptr;
  int (*GroupStart)() = nullptr;
  int (*GroupEnd)() = nullptr;
  int (*AllReduce)(const void*, void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  int (*ReduceScatter)(const void*, void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  int (*AllGather)(const void*, void*, size_t, int, NcclComm, CudaStream) = nullptr;
  int (*Reduce)(const void*, void*, size_t, int, int, int, NcclComm, CudaStream) = nullptr;
  int (*Broadcast)(const void*, void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  int (*RedOpCreatePreMulSum)(int*, void*, int, int, NcclComm) = nullptr;
  int (*RedOpDestroy)(int, NcclComm) = nullptr;
  const char* (*GetErrorString)(int) = nullptr;
  const char* (*GetLastError)(NcclComm) = nullptr;
  int version = 0;   // NCCL's number: 22703 for 2.27.3
  std::string path;  // of the library's file
};

// Returns NCCL, which is opened at the first call. Throws an Error that says what to install, or
// what is too old.
const NcclLibrary& nccl();

// Returns NCCL's version and the path of its library. Opens NCCL without the CUDA driver.
std::pair<std::string, std::string> nccl_version_and_path();

// Sets the folders of Python packages in which NCCL is searched, before the system's folders. Must
// be called before `nccl`.
void set_nccl_folders(std::vector<std::string> folders);

std::string nccl_version_text(int version);

}  // namespace easyddl
