#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/definitions.h"
#include "gpu/nccl_library.h"
#include "gpu/versions.h"

namespace py = pybind11;

namespace easyddl {

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
