// The functions of the CUDA driver that easyddl uses. easyddl is built without CUDA. Only this file
// opens the driver's library, at run time, when arrays are in GPU memory.
#pragma once

#include <cstddef>

#include "common/dynamic_library.h"

namespace easyddl {

// Handles and constants of cuda.h, which are part of CUDA's ABI. The header is not included,
// because it needs the CUDA toolkit, which may not be installed.
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

// Returns the driver, which is opened at the first call. Throws an Error that says what to install,
// or what is too old.
const CudaDriver& cuda();

// Throws an Error with `call` and CUDA's text for `code`, unless `code` means success.
void check_cuda(int code, const char* call);

}  // namespace easyddl

#define EASYDDL_CUDA(name, ...) \
  ::easyddl::check_cuda(::easyddl::cuda().name(__VA_ARGS__), "cu" #name)
