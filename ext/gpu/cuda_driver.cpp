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
  library.find(d.Init.function, "cuInit");
  library.find(d.DriverGetVersion.function, "cuDriverGetVersion");
  library.find(d.GetErrorString.function, "cuGetErrorString");
  library.find(d.DeviceGetCount.function, "cuDeviceGetCount");
  library.find(d.DeviceGet.function, "cuDeviceGet");
  library.find(d.DeviceGetName.function, "cuDeviceGetName");
  // Returns the UUID of the instance if a GPU is partitioned (MIG).
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
