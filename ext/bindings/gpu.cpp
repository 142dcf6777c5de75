#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <utility>
#include <vector>

#include "bindings/definitions.h"
#include "common/check.h"
#include "gpu/cuda_driver.h"
#include "gpu/nccl_library.h"

namespace py = pybind11;

namespace easyddl {
namespace {

// Returns the versions that `easyddl doctor` shows.
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

}  // namespace

void define_gpu(py::module_& m) {
  m.def("set_nccl_folders", &set_nccl_folders, py::arg("folders"),
        "Sets the folders of Python packages in which NCCL is searched. Opens nothing.");
  m.def(
      "gpu_versions", &gpu_versions,
      "Returns the versions of the CUDA driver and NCCL, and the names of the GPUs, as pairs of a "
      "name and a text. Opens both libraries.");
  m.def("nccl_version_and_path", &nccl_version_and_path,
        "Returns NCCL's version and the path of its library, after a check of all its functions.");
}

}  // namespace easyddl
