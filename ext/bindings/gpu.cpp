#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "bindings/definitions.h"
#include "gpu/nccl_library.h"
#include "gpu/versions.h"

namespace py = pybind11;

namespace easyddl {

void define_gpu(py::module_& m) {
  m.def("set_nccl_folders", &look_for_nccl_in, py::arg("folders"),
        "Where Python's packages keep NCCL. Nothing is opened before arrays lie on a GPU.");
  m.def("gpu_versions", &gpu_versions,
        "The CUDA driver, the GPUs and NCCL: pairs of a name and a text. Opens them.");
  m.def("nccl_version_and_path", &nccl_version_and_path,
        "NCCL's version, and the path of its library. Opens it, and looks up all functions.");
}

}  // namespace easyddl
