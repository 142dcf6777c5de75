# Defines easyddl_layer, by which each folder of the engine becomes a target of its own.

# easyddl_layer(<folder> [USES <folder>...])
#
# Compiles the folder's sources. They may include the folder's own headers, those of the folders
# that it names, and what these name in turn; an include of any other folder does not compile. Headers
# are included by their path from here, as in `#include "runtime/topology.h"`. So each folder has an
# include directory of its own, in which there is nothing but a link to the folder.
#
# The target easyddl_<folder>_headers is for those who include a folder without linking it.
function(easyddl_layer folder)
  cmake_parse_arguments(layer "" "" "USES" ${ARGN})
  set(include_directory "${CMAKE_CURRENT_BINARY_DIR}/include/${folder}")
  file(MAKE_DIRECTORY "${include_directory}")
  file(CREATE_LINK "${CMAKE_CURRENT_SOURCE_DIR}/${folder}" "${include_directory}/${folder}"
       SYMBOLIC)
  add_library(easyddl_${folder}_headers INTERFACE)
  target_include_directories(easyddl_${folder}_headers INTERFACE "${include_directory}")
  foreach(used IN LISTS layer_USES)
    target_link_libraries(easyddl_${folder}_headers INTERFACE easyddl_${used}_headers)
  endforeach()

  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp")
  # Objects rather than an archive: _core holds all of them, as if they were its own sources.
  add_library(easyddl_${folder} OBJECT ${sources})
  set_target_properties(easyddl_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                     CXX_VISIBILITY_PRESET hidden)
  target_link_libraries(easyddl_${folder} PRIVATE easyddl_${folder}_headers
                                                  Threads::Threads easyddl_flags)
  target_sources(easyddl_engine INTERFACE "$<TARGET_OBJECTS:easyddl_${folder}>")
  target_link_libraries(easyddl_engine INTERFACE easyddl_${folder}_headers)
endfunction()
