// The CUDA driver, as far as it is used. The one place that opens its library, at run time and only
// where arrays lie on a GPU: easyddl is built without it.
#pragma once

#include <cstddef>

#include "common/dynamic_library.h"

namespace easyddl {

// Handles and constants of cuda.h, which are part of its ABI. The header is not included: it comes
// with a toolkit that a machine need not have.
using CudaAddress = unsigned long long;
using CudaContext = struct CUctx_st*;
using CudaStream = struct CUstream_st*;
using CudaEvent = struct CUevent_st*;

constexpr int kCudaSuccess = 0;
constexpr int kCudaNotReady = 600;

struct CudaUuid {
  unsigned char bytes[16];
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

// Opened at the first call. Throws an Error that says what to install, or what is too old.
const CudaDriver& cuda();

// Throws an Error naming `call` and CUDA's own text for `code` unless that is success.
void check_cuda(int code, const char* call);

}  // namespace easyddl

#define EASYDDL_CUDA(name, ...) \
  ::easyddl::check_cuda(::easyddl::cuda().name(__VA_ARGS__), "cu" #name)
