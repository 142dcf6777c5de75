# Builds for the MPI that find_mpicxx.py finds. Gets its headers and its library from its compiler
# wrapper.
#
# FindMPI is not used, because it also applies the wrapper's -rpath and C++ bindings, and because it
# searches elsewhere if a wrapper is broken.

easyddl_run_script(mpicxx find_mpicxx.py)

set(broken " easyddl needs a working MPI library to build, but ${mpicxx} does not work: \
reinstall it, or install another (for example `pip install mpich`) and set MPICXX to its mpicxx.")

# The wrappers of MPICH, Open MPI and all MPIs based on them support -show.
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
set(incomplete)
foreach(argument IN LISTS arguments)
  if(incomplete AND NOT argument MATCHES "^-") # They do not quote a path with spaces.
    string(PREPEND argument "${incomplete} ")
  endif()
  set(incomplete)
  if(argument MATCHES "^-([IL])(.+)")
    if(NOT IS_DIRECTORY "${CMAKE_MATCH_2}")
      set(incomplete "${argument}")
    elseif(CMAKE_MATCH_1 STREQUAL "I")
      list(APPEND include_directories "${CMAKE_MATCH_2}")
    else()
      list(APPEND link_directories "${CMAKE_MATCH_2}")
    endif()
  elseif(argument MATCHES "^-l(mpi.*)")
    list(APPEND libraries "${CMAKE_MATCH_1}")
  endif()
endforeach()
list(FILTER libraries EXCLUDE REGEX "cxx|\\+\\+|fort") # Keeps mpi, or mpich on Debian.
list(REMOVE_DUPLICATES include_directories)
list(REMOVE_DUPLICATES link_directories)

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

set(found_abi other)
foreach(abi IN ITEMS openmpi mpich abi)
  try_compile(
    matches
    SOURCES "${CMAKE_CURRENT_LIST_DIR}/mpi_abi.cpp"
    CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${include_directories}"
    COMPILE_DEFINITIONS -DOMPI_SKIP_MPICXX -DMPICH_SKIP_MPICXX -DEASYDDL_IS_${abi})
  if(matches)
    set(found_abi ${abi})
    break()
  endif()
endforeach()

easyddl_mpi_translation(${found_abi} ${include_directories})

add_library(easyddl_found_mpi INTERFACE)
target_link_directories(easyddl_found_mpi INTERFACE ${link_directories})
# Otherwise the linker would drop a library whose functions the program itself does not call.
target_link_options(easyddl_found_mpi INTERFACE -Wl,--no-as-needed)
target_link_libraries(easyddl_found_mpi INTERFACE ${libraries})

message(STATUS "MPI: ${mpicxx} (${found_abi}; ${libraries}), found in ${link_directories}")
