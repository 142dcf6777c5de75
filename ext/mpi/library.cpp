#include "mpi/library.h"

#include <dlfcn.h>

#include <cstdint>

#include "common/check.h"
#include "common/dynamic_library.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

const mpi::Functions* g_functions = nullptr;
std::string g_path;

// Returns the path of the MPI library that a loaded library uses. Looks up the function in that
// library's scope, because the first one in the process may be that of a preloaded tool.
std::string mpi_used_by(const std::string& user) {
  void* const handle = dlopen(user.empty() ? nullptr : user.c_str(), RTLD_LAZY | RTLD_NOLOAD);
  if (handle == nullptr)
    throw Error("'" + user + "' is not loaded, and so MPI is not loaded either.");
  void* const function = dlsym(handle, "MPI_Get_library_version");
  if (function == nullptr) throw Error("'" + user + "' does not use an MPI library.");
  return path_of(function);
}

// Returns the cause of an error of MPI that does not name it, and what to do; empty if unknown.
std::string advice_about(const std::string& problem) {
  if (problem.find("process_vm_") == std::string::npos) return "";  // of MPICH
  return "\nMPI copies directly between the memory of ranks that share a host. The kernel forbids "
         "this once a rank has changed its user, its capabilities or PR_SET_DUMPABLE. Change them "
         "before easyddl starts, or set MPIR_CVAR_CH4_CMA_ENABLE=0, so that MPICH does not do so.";
}

}  // namespace

// A translation is not linked with an MPI library, because libraries of the same ABI have different
// file names at some sites. It finds MPI's functions among the global symbols of the process.
// mpi4py loads MPI with RTLD_LOCAL, so its symbols must first be made global. The functions of a
// preloaded tool precede them, as usual.
void load_mpi(const std::string& translation, const std::string& user_of_mpi) {
  if (g_functions != nullptr) return;
  g_path = mpi_used_by(user_of_mpi);
  if (!user_of_mpi.empty() &&
      dlopen(g_path.c_str(), RTLD_LAZY | RTLD_NOLOAD | RTLD_GLOBAL) == nullptr) {
    throw Error(std::string("MPI's symbols cannot be made global: ") + dlerror());
  }
  DynamicLibrary library("The translation " + translation);
  if (!library.open(translation)) throw Error(library.error());
  mpi::EntryPoint* entry_point = nullptr;
  library.find(entry_point, mpi::kEntryPoint);
  g_functions = entry_point();
}

const mpi::Functions& mpi_functions() {
  if (g_functions == nullptr) throw Error("MPI was called before load_mpi.");
  return *g_functions;
}

std::string mpi_library_version() {
  char text[mpi::kMaxLibraryVersion];
  int length = 0;
  EASYDDL_MPI(MPI_Get_library_version, text, &length);
  return std::string(text, static_cast<size_t>(length));
}

const std::string& mpi_library_path() { return g_path; }

void check_mpi(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  char text[mpi::kMaxErrorString];
  int length = 0;
  if (mpi_functions().MPI_Error_string(code, text, &length) != MPI_SUCCESS) length = 0;
  const std::string problem(text, static_cast<size_t>(length));
  throw Error(std::string(call) + " failed: " + problem + advice_about(problem));
}

}  // namespace easyddl
