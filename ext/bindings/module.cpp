// The module easyddl._core. Its functions and methods take arguments, release Python's lock and
// call the engine.
#include <pybind11/pybind11.h>

#include <string>

#include "arrays/kernels.h"
#include "bindings/definitions.h"
#include "common/check.h"
#include "mpi/library.h"
#include "mpi/mpi.h"

namespace py = pybind11;
using namespace easyddl;

PYBIND11_MODULE(_core, m) {
  m.doc() = "The engine of easyddl: hierarchical collectives over shared memory and MPI.";
  py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  m.def("load_mpi", &load_mpi, py::arg("translation"), py::arg("user_of_mpi"),
        "Loads the translation through which the engine calls MPI: a file, for the MPI that "
        "`user_of_mpi`, a loaded library, uses. Before all else.");
  m.def("mpi_library_version", &mpi_library_version, "What the MPI that is loaded calls itself.");
  m.def("mpi_library_path", &mpi_library_path, "The file of the MPI that is loaded.");
  m.def(
      "mpi_world", [] { return mpi_functions().world; },
      "The MPI_COMM_WORLD of the MPI that the translation was compiled for.");
  m.def(
      "built_with", [] { return std::string(mpi_functions().built_with); },
      "The MPI that the translation was compiled for.");
  m.def(
      "instruction_set", [] { return kernels().instruction_set; },
      "The processor's instructions that reductions use.");
  define_startup_monitor(m);
  define_world(m);
  define_communicator(m);
  define_work_handle(m);
  define_reducer(m);
  define_gpu(m);
  define_profiling(m);
  define_bench(m);
  define_process(m);
}
