// Loads the MPI library, once in a process.
#pragma once

#include <string>

namespace easyddl {

// Loads the library `translation`, through which the engine calls MPI. `user_of_mpi` is the path of
// a loaded library that uses MPI, such as mpi4py's extension; if it is empty, the program itself is
// linked with MPI. Throws an Error if the translation is for another MPI. Later calls return at
// once.
void load_mpi(const std::string& translation, const std::string& user_of_mpi);

// Returns the version text of the loaded library.
std::string mpi_library_version();

// Returns the path of the loaded library.
const std::string& mpi_library_path();

}  // namespace easyddl
