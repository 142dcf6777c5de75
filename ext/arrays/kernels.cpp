#include "arrays/kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace easyddl {

extern const Kernels kBaselineKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

namespace {

const Kernels* g_kernels = usable_kernels().back();

#if defined(__x86_64__)

// Bits of CPUID and of XCR0 (Intel's manual, volume 1, chapters 14.3 and 15.2).
// __builtin_cpu_supports is not used, because it always returns false with zig's runtime library.
constexpr unsigned kOsxsave = 1u << 27;                                          // leaf 1, ECX
constexpr unsigned kAvx2 = 1u << 5;                                              // leaf 7, EBX
constexpr unsigned kAvx512 = (1u << 16) | (1u << 17) | (1u << 30) | (1u << 31);  // F, DQ, BW, VL
constexpr unsigned kStateOfAvx = 0x6, kStateOfAvx512 = 0xe6;                     // XCR0

struct Processor {
  unsigned features = 0;  // leaf 7, EBX
  unsigned states = 0;    // XCR0: the registers that the system saves for each thread

  Processor() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsxsave) == 0) return;
    __asm__("xgetbv" : "=a"(states), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) != 0) features = b;
  }
  bool has(unsigned wanted_features, unsigned wanted_states) const {
    return (features & wanted_features) == wanted_features &&
           (states & wanted_states) == wanted_states;
  }
};

#endif

}  // namespace

// On aarch64 the baseline has NEON.
std::vector<const Kernels*> usable_kernels() {
  std::vector<const Kernels*> usable{&kBaselineKernels};
#if defined(__x86_64__)
  const Processor processor;
  if (processor.has(kAvx2, kStateOfAvx)) {
    usable.push_back(&kAvx2Kernels);
    if (processor.has(kAvx512, kStateOfAvx512)) usable.push_back(&kAvx512Kernels);
  }
#endif
  return usable;
}

const Kernels& kernels() { return *g_kernels; }

void use_kernels(const Kernels& chosen) { g_kernels = &chosen; }

}  // namespace easyddl
