# Defines the target easyddl_flags: what everything here is compiled with, namely warnings, exact
# floating-point arithmetic and the sanitizers that EASYDDL_SANITIZE asks for.

add_library(easyddl_flags INTERFACE)
# -ffp-contract=off: where a processor multiplies and adds in one step, that would round otherwise
# than where it takes two, and hosts of two kinds in one job must choose alike.
target_compile_options(easyddl_flags INTERFACE -Wall -Wextra -Wpedantic -ffp-contract=off)

if(EASYDDL_SANITIZE STREQUAL "")
  return()
elseif(EASYDDL_SANITIZE STREQUAL "address")
  # What is undefined ends the program, as what AddressSanitizer finds does.
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=undefined)
elseif(EASYDDL_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
  # GCC warns that ThreadSanitizer takes no notice of fences. None of ours guards memory that is
  # not atomic, so it reports no race for that.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(easyddl_flags INTERFACE -Wno-tsan)
  endif()
else()
  message(FATAL_ERROR " EASYDDL_SANITIZE must be address, thread or nothing. Received: "
                      "${EASYDDL_SANITIZE}")
endif()

# A compiler may know a sanitizer whose library is not installed.
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

# -O1 comes after Release's -O3 and takes its place: reports then name the right lines.
target_compile_options(easyddl_flags INTERFACE ${sanitize} -O1 -g -fno-omit-frame-pointer)
target_link_options(easyddl_flags INTERFACE ${sanitize})
