// The machine's CUDA driver, whose copies to the host are counted: to be loaded in its place.
//
// All other functions are found in the driver itself, because this library depends on it. It bears
// the driver's file name, but no name of its own that the loader could take for the driver's.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using Copy = int (*)(void* to, uintptr_t from, size_t bytes, void* stream);

std::atomic<uint64_t> g_to_host{0};

// Found when this library is loaded: a local static would take functions of the C++ library, which
// the linker may leave out.
void* const g_driver = dlopen("libcuda.so.1", RTLD_LAZY);
const auto g_copy = reinterpret_cast<Copy>(dlsym(g_driver, "cuMemcpyDtoHAsync_v2"));

}  // namespace

// How many bytes streams have copied to the host.
EXPORT uint64_t standInToHost() { return g_to_host; }

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void* stream) {
  g_to_host += bytes;
  return g_copy(to, from, bytes, stream);
}
