# Defines the target easyddl_mpi: the headers and the library of the MPI that
# find_mpicxx.py chose, as its compiler wrapper tells them.
#
# Not FindMPI: it hands on the wrapper's -rpath and its C++ bindings, and looks elsewhere
# for what a broken wrapper does not tell.

execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/find_mpicxx.py"
  RESULT_VARIABLE failed
  OUTPUT_VARIABLE mpicxx
  ERROR_VARIABLE sentence
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR " ${sentence}")
endif()

set(broken " easyddl needs a working MPI library to build, and ${mpicxx} does not work: \
reinstall it, or install another (for example `pip install mpich`) and set MPICXX to its mpicxx.")

# MPICH, Open MPI and those made from them all know -show.
execute_process(
  COMMAND "${mpicxx}" -show
  RESULT_VARIABLE failed
  OUTPUT_VARIABLE command
  ERROR_VARIABLE complaint
  OUTPUT_STRIP_TRAILING_WHITESPACE
  ERROR_STRIP_TRAILING_WHITESPACE)
if(failed)
  message(FATAL_ERROR "${broken}\n ${complaint}")
endif()

separate_arguments(arguments UNIX_COMMAND "${command}")
set(include_directories)
set(link_directories)
set(libraries)
foreach(argument IN LISTS arguments)
  if(argument MATCHES "^-I(.+)")
    list(APPEND include_directories "${CMAKE_MATCH_1}")
  elseif(argument MATCHES "^-L(.+)")
    list(APPEND link_directories "${CMAKE_MATCH_1}")
  elseif(argument MATCHES "^-l(mpi.*)")
    list(APPEND libraries "${CMAKE_MATCH_1}")
  endif()
endforeach()
list(FILTER libraries EXCLUDE REGEX "cxx|\\+\\+|fort") # Leaves mpi, or mpich on Debian.
list(REMOVE_DUPLICATES include_directories)
list(REMOVE_DUPLICATES link_directories)

add_library(easyddl_mpi INTERFACE)
target_include_directories(easyddl_mpi SYSTEM INTERFACE ${include_directories})
target_link_directories(easyddl_mpi INTERFACE ${link_directories})
target_link_libraries(easyddl_mpi INTERFACE ${libraries})
# The C API only: the old C++ bindings live in a library of their own.
target_compile_definitions(easyddl_mpi INTERFACE OMPI_SKIP_MPICXX MPICH_SKIP_MPICXX)

list(TRANSFORM link_directories PREPEND "-L" OUTPUT_VARIABLE link_options)
try_compile(
  works
  SOURCE_FROM_CONTENT mpi.cpp
                      "#include <mpi.h>\nint main() { return MPI_Init(nullptr, nullptr); }\n"
  CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${include_directories}"
  COMPILE_DEFINITIONS -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX
  LINK_OPTIONS ${link_options}
  LINK_LIBRARIES ${libraries}
  OUTPUT_VARIABLE complaint)
if(NOT works)
  string(REPLACE "\n" "\n " complaint "${complaint}")
  message(FATAL_ERROR "${broken}\n ${complaint}")
endif()

message(STATUS "MPI: ${mpicxx} (${libraries}), found in ${link_directories}")
