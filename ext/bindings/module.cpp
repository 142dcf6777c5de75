// The module easyddl._core. Its functions and methods take arguments, release Python's lock and
// call the engine.
#include <mpi.h>
#include <pybind11/pybind11.h>

#include <string>

#include "bindings/definitions.h"
#include "common/check.h"

namespace py = pybind11;
using namespace easyddl;

namespace {

std::string mpi_library_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  check_mpi(MPI_Get_library_version(text, &length), "MPI_Get_library_version");
  return std::string(text, static_cast<size_t>(length));
}

std::string built_with() {
#if defined(OMPI_MAJOR_VERSION)
  return "Open MPI " + std::to_string(OMPI_MAJOR_VERSION) + '.' +
         std::to_string(OMPI_MINOR_VERSION) + '.' + std::to_string(OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return std::string("MPICH ") + MPICH_VERSION;
#else
  return "MPI " + std::to_string(MPI_VERSION) + '.' + std::to_string(MPI_SUBVERSION);
#endif
}

}  // namespace

PYBIND11_MODULE(_core, m) {
  m.doc() = "The engine of easyddl: hierarchical collectives over shared memory and MPI.";
  py::register_exception<Error>(m, "Error", PyExc_RuntimeError);
  m.def("mpi_library_version", &mpi_library_version, "What the MPI that is loaded calls itself.");
  m.def("built_with", &built_with, "The MPI that this module was compiled for.");
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
