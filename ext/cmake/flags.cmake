# Defines the target easyddl_flags, the compiler options of all targets: warnings, exact
# floating-point arithmetic, and the sanitizers in EASYDDL_SANITIZE.

add_library(easyddl_flags INTERFACE)
# -ffp-contract=off: a fused multiply-add rounds once, and separate operations round twice.
# Different kinds of hosts in one job must compute the same bits.
target_compile_options(easyddl_flags INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off)

if(EASYDDL_SANITIZE STREQUAL "")
  return()
elseif(EASYDDL_SANITIZE STREQUAL "address")
  # Undefined behaviour ends the program, like errors that AddressSanitizer finds.
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(EASYDDL_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
  # GCC warns that ThreadSanitizer ignores fences. The engine's fences only order atomic accesses,
  # so it reports no false race.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(easyddl_flags INTERFACE -Wno-tsan)
  endif()
else()
  message(FATAL_ERROR " EASYDDL_SANITIZE must be address, thread or nothing. Received: "
                      "${EASYDDL_SANITIZE}")
endif()

# A compiler may support a sanitizer whose library is not installed.
try_compile(
  works
  SOURCE_FROM_CONTENT sanitize.cpp "int main() { return 0; }\n"
  COMPILE_DEFINITIONS ${sanitize}
  LINK_OPTIONS ${sanitize}
  OUTPUT_VARIABLE complaint)
if(NOT works)
  string(REPLACE "\n" "\n " complaint "${complaint}")
  message(FATAL_ERROR " The compiler cannot build with ${sanitize}: is the sanitizer's runtime "
                      "library installed?\n ${complaint}")
endif()

# -O1 overrides Release's -O3, so that reports name the right lines.
target_compile_options(easyddl_flags INTERFACE ${sanitize} -O1 -g -fno-omit-frame-pointer)
target_link_options(easyddl_flags INTERFACE ${sanitize})
