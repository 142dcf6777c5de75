#include "gpu/versions.h"

#include "gpu/cuda_driver.h"
#include "gpu/nccl_library.h"

namespace easyddl {

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

}  // namespace easyddl
