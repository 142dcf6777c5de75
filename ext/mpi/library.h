// The choice of the MPI library, once in a process.
#pragma once

#include <string>

namespace easyddl {

// Loads the translation (a file) through which the engine calls MPI. Before, `user_of_mpi`, a
// library that the process has already loaded, must have loaded MPI: mpi4py's extension. If it is
// empty, the program itself is linked with MPI. Throws an Error if the translation is of another
// MPI. Later calls return at once.
void load_mpi(const std::string& translation, const std::string& user_of_mpi);

// What the loaded library calls itself.
std::string mpi_library_version();

// The path of the loaded library.
const std::string& mpi_library_path();

}  // namespace easyddl
