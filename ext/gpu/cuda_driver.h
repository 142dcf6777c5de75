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
  int (*Init)(unsigned) = nullptr;
  int (*DriverGetVersion)(int*) = nullptr;
  int (*GetErrorString)(int, const char**) = nullptr;
  int (*DeviceGetCount)(int*) = nullptr;
  int (*DeviceGet)(int*, int) = nullptr;
  int (*DeviceGetName)(char*, int, int) = nullptr;
  int (*DeviceGetUuid)(CudaUuid*, int) = nullptr;
  int (*DeviceGetPCIBusId)(char*, int, int) = nullptr;
  int (*DevicePrimaryCtxRetain)(CudaContext*, int) = nullptr;
  int (*CtxGetCurrent)(CudaContext*) = nullptr;
  int (*CtxSetCurrent)(CudaContext) = nullptr;
  int (*CtxGetDevice)(int*) = nullptr;
  int (*PointerGetAttribute)(void*, int, CudaAddress) = nullptr;
  int (*MemAlloc)(CudaAddress*, size_t) = nullptr;
  int (*MemFree)(CudaAddress) = nullptr;
  int (*MemHostAlloc)(void**, size_t, unsigned) = nullptr;
  int (*MemFreeHost)(void*) = nullptr;
  int (*MemcpyDtoHAsync)(void*, CudaAddress, size_t, CudaStream) = nullptr;
  int (*MemcpyHtoDAsync)(CudaAddress, const void*, size_t, CudaStream) = nullptr;
  int (*MemcpyDtoDAsync)(CudaAddress, CudaAddress, size_t, CudaStream) = nullptr;
  int (*MemsetD8Async)(CudaAddress, unsigned char, size_t, CudaStream) = nullptr;
  int (*StreamCreate)(CudaStream*, unsigned) = nullptr;
  int (*StreamDestroy)(CudaStream) = nullptr;
  int (*StreamIsCapturing)(CudaStream, int*) = nullptr;
  int (*ThreadExchangeStreamCaptureMode)(int*) = nullptr;
  int (*EventCreate)(CudaEvent*, unsigned) = nullptr;
  int (*EventDestroy)(CudaEvent) = nullptr;
  int (*EventRecord)(CudaEvent, CudaStream) = nullptr;
  int (*EventQuery)(CudaEvent) = nullptr;
  int (*StreamWaitEvent)(CudaStream, CudaEvent, unsigned) = nullptr;
};

// Returns the driver, which is opened at the first call. Throws an Error that says what to install,
// or what is too old.
const CudaDriver& cuda();

// Throws an Error with `call` and CUDA's text for `code`, unless `code` means success.
void check_cuda(int code, const char* call);

}  // namespace easyddl

#define EASYDDL_CUDA(name, ...) \
  ::easyddl::check_cuda(::easyddl::cuda().name(__VA_ARGS__), "cu" #name)
