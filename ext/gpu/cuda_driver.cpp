#include "gpu/cuda_driver.h"

#include <dlfcn.h>

#include <string>

#include "common/check.h"
#include "common/environment.h"

namespace easyddl {
namespace {

constexpr const char* kCudaFile = "libcuda.so.1";

std::string text_of_cuda(const CudaDriver& driver, int code) {
  const char* text = nullptr;
  if (driver.GetErrorString(code, &text) != kCudaSuccess || text == nullptr) text = "unknown error";
  return std::string(text) + " (CUDA error " + std::to_string(code) + ")";
}

CudaDriver open_cuda() {
  DynamicLibrary library("The CUDA driver");
  const std::string path = environment_variable("EASYDDL_CUDA_PATH");
  if (!path.empty() && !library.open(file_at(path, kCudaFile))) {
    throw Error("EASYDDL_CUDA_PATH must name the CUDA driver's library or its folder. " +
                library.error() + " Received: '" + path + "'");
  }
  library.open(kCudaFile, RTLD_NOLOAD);
  if (!library.open(kCudaFile)) {
    throw Error(std::string("Arrays are in GPU memory, but the CUDA driver (") + kCudaFile +
                ") cannot be opened: " + library.error() +
                ". Install NVIDIA's driver. Start a container with access to the GPUs.");
  }
  CudaDriver d;
  library.find(d.Init, "cuInit");
  library.find(d.DriverGetVersion, "cuDriverGetVersion");
  library.find(d.GetErrorString, "cuGetErrorString");
  library.find(d.DeviceGetCount, "cuDeviceGetCount");
  library.find(d.DeviceGet, "cuDeviceGet");
  library.find(d.DeviceGetName, "cuDeviceGetName");
  // Returns the UUID of the instance if a GPU is partitioned (MIG).
  library.find(d.DeviceGetUuid, "cuDeviceGetUuid_v2", true);
  if (d.DeviceGetUuid == nullptr) library.find(d.DeviceGetUuid, "cuDeviceGetUuid");
  library.find(d.DeviceGetPCIBusId, "cuDeviceGetPCIBusId");
  library.find(d.DevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  library.find(d.CtxGetCurrent, "cuCtxGetCurrent");
  library.find(d.CtxSetCurrent, "cuCtxSetCurrent");
  library.find(d.CtxGetDevice, "cuCtxGetDevice");
  library.find(d.PointerGetAttribute, "cuPointerGetAttribute");
  library.find(d.MemAlloc, "cuMemAlloc_v2");
  library.find(d.MemFree, "cuMemFree_v2");
  library.find(d.MemHostAlloc, "cuMemHostAlloc");
  library.find(d.MemFreeHost, "cuMemFreeHost");
  library.find(d.MemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2");
  library.find(d.MemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2");
  library.find(d.MemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2");
  library.find(d.MemsetD8Async, "cuMemsetD8Async");
  library.find(d.StreamCreate, "cuStreamCreate");
  library.find(d.StreamDestroy, "cuStreamDestroy_v2");
  library.find(d.StreamIsCapturing, "cuStreamIsCapturing");
  library.find(d.ThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  library.find(d.EventCreate, "cuEventCreate");
  library.find(d.EventDestroy, "cuEventDestroy_v2");
  library.find(d.EventRecord, "cuEventRecord");
  library.find(d.EventQuery, "cuEventQuery");
  library.find(d.StreamWaitEvent, "cuStreamWaitEvent");
  const int code = d.Init(0);
  if (code != kCudaSuccess) throw Error("cuInit failed: " + text_of_cuda(d, code));
  return d;
}

}  // namespace

// After an exception the next call tries again, because the static is still uninitialized.
const CudaDriver& cuda() {
  static const CudaDriver driver = open_cuda();
  return driver;
}

void check_cuda(int code, const char* call) {
  if (code == kCudaSuccess) return;
  throw Error(std::string(call) + " failed: " + text_of_cuda(cuda(), code));
}

}  // namespace easyddl
