// The module easyddl._core. Its functions and methods convert arguments, release Python's lock and
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
        "Loads the library `translation`, through which the engine calls MPI. It uses the MPI that "
        "the loaded library `user_of_mpi` uses. Must be called before all other functions.");
  m.def("mpi_library_version", &mpi_library_version,
        "Returns the version text of the loaded MPI library.");
  m.def("mpi_library_path", &mpi_library_path, "Returns the path of the loaded MPI library.");
  m.def(
      "mpi_world", [] { return mpi_functions().world; },
      "Returns the value of MPI_COMM_WORLD with which the translation was compiled.");
  m.def(
      "built_with", [] { return std::string(mpi_functions().built_with); },
      "Returns the name and version of the MPI with whose header the translation was compiled.");
  m.def(
      "instruction_set", [] { return kernels().instruction_set; },
      "Returns the name of the instruction set that reductions use.");
  define_startup_monitor(m);
  define_world(m);
  define_communicator(m);
  define_reducer(m);
  define_gpu(m);
  define_profiling(m);
  define_bench(m);
  define_process(m);
  define_inter_host_algorithm(m);
}
