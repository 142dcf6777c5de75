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

}  // namespace

// How many bytes streams have copied to the host.
EXPORT uint64_t standInToHost() { return g_to_host; }

EXPORT int cuMemcpyDtoHAsync_v2(void* to, uintptr_t from, size_t bytes, void* stream) {
  static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  static const auto copy = reinterpret_cast<Copy>(dlsym(driver, "cuMemcpyDtoHAsync_v2"));
  g_to_host += bytes;
  return copy(to, from, bytes, stream);
}
