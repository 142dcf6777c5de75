# A toolchain file that compiles with zig, for an old glibc or another processor.
#
#   cmake --toolchain ext/cmake/zig.cmake -DEASYDDL_ZIG=.../zig -DEASYDDL_TARGET=aarch64-linux-gnu.2.28
#
# zig (the package `ziglang` of PyPI) is LLVM's compiler with the headers and symbols of each glibc,
# and with a C++ standard library (libc++) that it links statically. So its binaries run on all
# systems whose glibc is not older.

set(EASYDDL_ZIG zig CACHE STRING "The program zig")
set(EASYDDL_TARGET x86_64-linux-gnu.2.28 CACHE STRING "Processor, system and glibc, in zig's notation")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES EASYDDL_ZIG EASYDDL_TARGET)

string(REGEX MATCH "^[^-]+" processor "${EASYDDL_TARGET}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR ${processor})
set(CMAKE_C_COMPILER "${EASYDDL_ZIG}")
set(CMAKE_C_COMPILER_ARG1 "cc -target ${EASYDDL_TARGET}")
set(CMAKE_CXX_COMPILER "${EASYDDL_ZIG}")
set(CMAKE_CXX_COMPILER_ARG1 "c++ -target ${EASYDDL_TARGET}")
# zig compiles libc++ for each kind of program, which takes a minute. CMake's tests of the compiler
# avoid that if they link no program.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
# The host's strip may not support another processor.
set(CMAKE_STRIP "" CACHE FILEPATH "")
