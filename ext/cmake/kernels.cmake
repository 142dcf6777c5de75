# Compiles the loops over elements (arrays/kernels/kernels.cpp) for each instruction set.
#
# A wheel must run on all processors, so all other files are compiled for the oldest one (no
# -march=native). arrays/kernels.cpp chooses the kernels at run time. -O3 (Release) vectorises. The
# two options below let it vectorise comparisons and conversions too, and do not change results.
# -ffast-math would change results.

function(easyddl_kernels name instruction_set)
  set(target easyddl_kernels_${name})
  add_library(${target} OBJECT arrays/kernels/kernels.cpp)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON
                                             CXX_VISIBILITY_PRESET hidden)
  target_compile_definitions(
    ${target} PRIVATE EASYDDL_KERNELS=k${name}Kernels EASYDDL_INSTRUCTION_SET="${instruction_set}")
  target_compile_options(${target} PRIVATE -fno-math-errno -fno-trapping-math ${ARGN})
  target_link_libraries(${target} PRIVATE easyddl_arrays_headers easyddl_flags)
  target_sources(easyddl_engine INTERFACE "$<TARGET_OBJECTS:${target}>")
endfunction()

if(CMAKE_SYSTEM_PROCESSOR STREQUAL "x86_64")
  easyddl_kernels(Baseline SSE2)
  easyddl_kernels(Avx2 AVX2 -mavx2)
  easyddl_kernels(Avx512 AVX-512 -mavx2 -mavx512f -mavx512bw -mavx512dq -mavx512vl)
elseif(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  easyddl_kernels(Baseline NEON)
else()
  easyddl_kernels(Baseline baseline)
endif()
