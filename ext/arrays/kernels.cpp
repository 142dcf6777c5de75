#include "arrays/kernels.h"

namespace easyddl {

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

const Kernels* g_kernels = usable_kernels().back();

}  // namespace

// On aarch64 the baseline has NEON.
std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> usable{&kBaselineKernels};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) usable.push_back(&kAvx2Kernels);
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    usable.push_back(&kAvx512Kernels);
  }
#endif
  return usable;
}

const Kernels& kernels() { return *g_kernels; }

void use_kernels(const Kernels& chosen) { g_kernels = &chosen; }

}  // namespace easyddl
