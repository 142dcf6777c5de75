# Defines easyddl_layer, which creates a target for a folder of the engine.

# easyddl_layer(<folder> [USES <folder>...])
#
# Compiles the folder's sources. They may include the folder's own headers, those of the folders in
# USES, and those that these use in turn. An include of any other folder does not compile. Headers
# are included by their path from ext/, as in `#include "runtime/topology.h"`. So each folder has
# its own include directory, which holds only a link to the folder.
#
# The target easyddl_<folder>_headers is for targets that include a folder's headers without linking
# it.
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
  # An object library instead of an archive, because _core contains all objects.
  add_library(easyddl_${folder} OBJECT ${sources})
  set_target_properties(easyddl_${folder} PROPERTIES POSITION_INDEPENDENT_CODE ON
                                                     CXX_VISIBILITY_PRESET hidden)
  target_link_libraries(easyddl_${folder} PRIVATE easyddl_${folder}_headers
                                                  Threads::Threads easyddl_flags)
  target_sources(easyddl_engine INTERFACE "$<TARGET_OBJECTS:easyddl_${folder}>")
  target_link_libraries(easyddl_engine INTERFACE easyddl_${folder}_headers)
endfunction()
