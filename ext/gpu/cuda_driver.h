// NCCL and the CUDA driver, as far as they are used. The one place that opens their libraries,
// at run time and only where arrays lie on a GPU: easyddl is built without them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace easyddl {

// Handles and constants of cuda.h and nccl.h, which are part of their ABIs. Neither header is
// included: both come with toolkits that a machine need not have.
using CudaAddress = unsigned long long;
using CudaContext = struct CUctx_st*;
using CudaStream = struct CUstream_st*;
using CudaEvent = struct CUevent_st*;
using NcclComm = struct ncclComm*;

constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

struct CudaUuid {
  unsigned char bytes[16];
};

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

// A function of a library, found by its name. It may be missing where it is optional.
template <class F>
struct Symbol;
template <class... Args>
struct Symbol<int(Args...)> {
  int (*function)(Args...) = nullptr;
  int operator()(Args... args) const { return function(args...); }
  explicit operator bool() const { return function != nullptr; }
};

// Named as in cuda.h, without the "cu".
struct CudaDriver {
  Symbol<int(unsigned)> Init;
  Symbol<int(int*)> DriverGetVersion;
  Symbol<int(int, const char**)> GetErrorString;
  Symbol<int(int*)> DeviceGetCount;
  Symbol<int(int*, int)> DeviceGet;
  Symbol<int(char*, int, int)> DeviceGetName;
  Symbol<int(CudaUuid*, int)> DeviceGetUuid;
  Symbol<int(char*, int, int)> DeviceGetPCIBusId;
  Symbol<int(CudaContext*, int)> DevicePrimaryCtxRetain;
  Symbol<int(CudaContext*)> CtxGetCurrent;
  Symbol<int(CudaContext)> CtxSetCurrent;
  Symbol<int(int*)> CtxGetDevice;
  Symbol<int(void*, int, CudaAddress)> PointerGetAttribute;
  Symbol<int(CudaAddress*, size_t)> MemAlloc;
  Symbol<int(CudaAddress)> MemFree;
  Symbol<int(void**, size_t, unsigned)> MemHostAlloc;
  Symbol<int(void*)> MemFreeHost;
  Symbol<int(void*, CudaAddress, size_t, CudaStream)> MemcpyDtoHAsync;
  Symbol<int(CudaAddress, const void*, size_t, CudaStream)> MemcpyHtoDAsync;
  Symbol<int(CudaAddress, CudaAddress, size_t, CudaStream)> MemcpyDtoDAsync;
  Symbol<int(CudaAddress, unsigned char, size_t, CudaStream)> MemsetD8Async;
  Symbol<int(CudaStream*, unsigned)> StreamCreate;
  Symbol<int(CudaStream)> StreamDestroy;
  Symbol<int(CudaStream, int*)> StreamIsCapturing;
  Symbol<int(int*)> ThreadExchangeStreamCaptureMode;
  Symbol<int(CudaEvent*, unsigned)> EventCreate;
  Symbol<int(CudaEvent)> EventDestroy;
  Symbol<int(CudaEvent, CudaStream)> EventRecord;
  Symbol<int(CudaEvent)> EventQuery;
  Symbol<int(CudaStream, CudaEvent, unsigned)> StreamWaitEvent;
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

// Opened at the first call. They throw an Error that says what to install, or what is too old.
const CudaDriver& cuda();
const NcclLibrary& nccl();

// Where Python's packages keep NCCL, beside where the system does. To be told before `nccl`.
void look_for_nccl_in(std::vector<std::string> folders);

std::string nccl_version_text(int version);

// What `easyddl doctor` shows: pairs of a name and a text. Opens both libraries.
std::vector<std::pair<std::string, std::string>> gpu_versions();

// Throws an Error naming `call` and CUDA's own text for `code` unless that is success.
void check_cuda(int code, const char* call);

}  // namespace easyddl

#define EASYDDL_CUDA(name, ...) \
  ::easyddl::check_cuda(::easyddl::cuda().name(__VA_ARGS__), "cu" #name)
