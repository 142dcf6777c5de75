// Measures how fast float32 is rounded to 16 bits and added from them, beside memcpy.
//
//   cmake -S ext -B build/dev -DEASYDDL_TESTS=ON && cmake --build build/dev -t conversion_speed
//   build/dev/tests/conversion_speed
//
// It prints gigabytes of float32 in a second, the fastest of the rounds: each round copies 100 MB,
// and then converts them with each set of kernels. All memory has been written before.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "arrays/arithmetic.h"
#include "arrays/kernels.h"

namespace {

using namespace easyddl;

constexpr size_t kCount = 25'000'000;
constexpr int kRounds = 15;

std::map<std::string, double> fastest;  // seconds, by what is measured

template <class Work>
void time(const std::string& name, Work work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const auto [found, is_new] = fastest.emplace(name, took.count());
  if (!is_new) found->second = std::min(found->second, took.count());
}

}  // namespace

int main() {
  std::vector<float> values(kCount), others(kCount);
  std::vector<uint16_t> wire(kCount);
  for (size_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1009) / 1009 - 0.5f;
  for (int round = 0; round < kRounds; ++round) {
    time("memcpy", [&] { std::memcpy(others.data(), values.data(), kCount * sizeof(float)); });
    for (const Kernels* kernels : usable_kernels()) {
      use_kernels(*kernels);
      for (const char* type : {"bfloat16", "float16"}) {
        const DType dtype = parse_dtype(type);
        const std::string name = std::string(kernels->instruction_set) + ", " + type;
        time(name + ", rounded",
             [&] { finish(wire.data(), values.data(), kCount, dtype, Op::sum, 1); });
        const void* source = wire.data();
        time(name + ", widened",
             [&] { accumulate(others.data(), &source, 1, kCount, dtype, Op::sum); });
      }
    }
  }
  const double bytes = static_cast<double>(kCount * sizeof(float));
  for (const auto& [name, seconds] : fastest) {
    std::printf("%-36s %6.2f GB/s  %.2f of memcpy\n", name.c_str(), bytes / seconds / 1e9,
                fastest["memcpy"] / seconds);
  }
  return 0;
}
