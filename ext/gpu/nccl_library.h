// NCCL, as far as it is used. The one place that opens its library, at run time and only where
// arrays lie on a GPU: easyddl is built without it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/dynamic_library.h"
#include "gpu/cuda_driver.h"

namespace easyddl {

// Handles and constants of nccl.h, which are part of its ABI.
using NcclComm = struct ncclComm*;

constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

struct NcclId {
  char bytes[128];
};

// The first fields of ncclConfig_t, as of NCCL 2.14, which is the first to know it. NCCL goes by
// `size` and `version`, and takes its own defaults for what came later.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21400;
  int blocking = 0;
};

// Named as in nccl.h, without the "nccl".
struct NcclLibrary {
  Symbol<int(int*)> GetVersion;
  Symbol<int(NcclId*)> GetUniqueId;
  Symbol<int(NcclComm*, int, NcclId, int, NcclConfig*)> CommInitRankConfig;
  Symbol<int(NcclComm)> CommAbort;
  Symbol<int(NcclComm, int*)> CommGetAsyncError;
  Symbol<int()> GroupStart;
  Symbol<int()> GroupEnd;
  Symbol<int(const void*, void*, size_t, int, int, NcclComm, CudaStream)> AllReduce;
  Symbol<int(const void*, void*, size_t, int, int, NcclComm, CudaStream)> ReduceScatter;
  Symbol<int(const void*, void*, size_t, int, NcclComm, CudaStream)> AllGather;
  Symbol<int(const void*, void*, size_t, int, int, int, NcclComm, CudaStream)> Reduce;
  Symbol<int(const void*, void*, size_t, int, int, NcclComm, CudaStream)> Broadcast;
  Symbol<int(int*, void*, int, int, NcclComm)> RedOpCreatePreMulSum;
  Symbol<int(int, NcclComm)> RedOpDestroy;
  const char* (*GetErrorString)(int) = nullptr;
  const char* (*GetLastError)(NcclComm) = nullptr;
  int version = 0;   // as NCCL counts: 22703 for 2.27.3
  std::string path;  // of its file
};

// Opened at the first call. Throws an Error that says what to install, or what is too old.
const NcclLibrary& nccl();

// Opens NCCL without the driver, which it does not need for these.
std::pair<std::string, std::string> nccl_version_and_path();

// Where Python's packages keep NCCL, beside where the system does. To be called before `nccl`.
void look_for_nccl_in(std::vector<std::string> folders);

std::string nccl_version_text(int version);

}  // namespace easyddl
