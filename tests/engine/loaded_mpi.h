// Loads the MPI library of these programs.
#pragma once

#include <dlfcn.h>

#include <cstdlib>

#include "mpi/library.h"

// Loads the MPI that the program is linked with, or the library that EASYDDL_TEST_LIBMPI names.
inline void load_mpi_of_tests() {
  const char* const library = std::getenv("EASYDDL_TEST_LIBMPI");
  if (library != nullptr) dlopen(library, RTLD_NOW | RTLD_GLOBAL);
  easyddl::load_mpi(EASYDDL_TRANSLATION, library != nullptr ? library : "");
}
