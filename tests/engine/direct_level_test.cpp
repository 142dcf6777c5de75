// Reductions in the memory of other ranks, on one host. With several hosts another algorithm gives
// the same results.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "collectives/allreduce.h"
#include "collectives/communicator.h"
#include "ranks.h"
#include "trial.h"

namespace {

using namespace easyddl;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kCount = 300007;  // more than some blocks, between two ranks
#else
constexpr size_t kCount = 2200013;  // 8 MiB, from which on any number of ranks goes this way
#endif

// Returns a page that the kernel maps into every process and that only the processor can read, as
// with a device's memory. Null if there is none.
const uint8_t* unreachable_page() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("[vvar]") == std::string::npos) continue;
    uintptr_t address = 0;
    std::istringstream(line) >> std::hex >> address;
    return reinterpret_cast<const uint8_t*>(address);
  }
  return nullptr;
}

std::vector<float> numbers(int rank) {
  std::vector<float> all(kCount);
  for (size_t i = 0; i < kCount; ++i) all[i] = static_cast<float>((i * 7 + i % 11) % 97) * 0.37f;
  for (float& each : all) each = each * static_cast<float>(rank + 1) + 0.1f;
  return all;
}

// Returns the exact bits of the sum of all ranks' numbers in the order of the ranks, if they are on
// one host.
std::vector<float> expected() {
  std::vector<float> sum = numbers(0);
  for (int rank = 1; rank < ranks::size(); ++rank) {
    const std::vector<float> theirs = numbers(rank);
    for (size_t i = 0; i < kCount; ++i) sum[i] += theirs[i];
  }
  return sum;
}

Segment segment(std::vector<float>& in, std::vector<float>& out) {
  return {reinterpret_cast<const uint8_t*>(in.data()), reinterpret_cast<uint8_t*>(out.data()),
          in.size() * sizeof(float)};
}

}  // namespace

// At the second time some arrays cannot be reached, so that all ranks use shared memory. The bits
// are the same.
TEST(arrays_in_reach_and_out_of_it_are_reduced_to_the_same_bits) {
  Communicator communicator(ranks::world());
  std::vector<float> in = numbers(ranks::rank()), out(kCount), again(kCount), clock(64), rest(64);
  allreduce(communicator, SegmentList({segment(in, out), segment(clock, rest)}), DType::float32,
            Op::sum, Fingerprint("in reach"));
  if (ranks::world().topology().num_nodes == 1) EXPECT(out == expected());
  Segment page = segment(clock, rest);
  const uint8_t* const unreachable = unreachable_page();
  if (ranks::rank() == ranks::size() - 1 && unreachable != nullptr) page.in = unreachable;
  allreduce(communicator, SegmentList({segment(in, again), page}), DType::float32, Op::sum,
            Fingerprint("out of reach"));
  EXPECT(again == out);
}

TEST(more_arrays_than_can_be_announced_are_reduced) {
  Communicator communicator(ranks::world());
  for (size_t length : {8, 1, 31}) {  // more than one call takes; more than a slot holds; both
    std::vector<float> in(length * 12000, 1), out(in.size());
    std::vector<Segment> segments;
    for (size_t at = 0; at < in.size(); at += length) {
      segments.push_back({reinterpret_cast<const uint8_t*>(in.data() + at),
                          reinterpret_cast<uint8_t*>(out.data() + at), length * sizeof(float)});
    }
    if (length == 8) segments.resize(9000);
    allreduce(communicator, SegmentList(segments), DType::float32, Op::sum, Fingerprint("many"));
    for (size_t i = 0; i < segments.size() * length; ++i) {
      EXPECT_EQUAL(out[i], static_cast<float>(ranks::size()));
    }
  }
}

// Rank 0 waits in vain for some time, and fails. The others enter the collective later, and get an
// error. No rank writes to arrays that rank 0 may have freed.
TEST(arrays_of_a_rank_that_has_failed_are_left_alone) {
  if (ranks::size() == 1 || ranks::world().topology().num_nodes > 1) return;
  // Never destroyed, as in late_test.cpp, because all ranks fail on it.
  static Communicator& communicator = *new Communicator(ranks::world());
  const auto start = std::chrono::steady_clock::now();
  communicator.set_idle([start] {
    if (std::chrono::steady_clock::now() - start > std::chrono::seconds(1)) {
      throw Error("The patience of a test has ended.");
    }
    if (ranks::rank() == 0) throw Error("Rank 0 has failed.");
  });
  std::vector<float> in = numbers(ranks::rank()), out(kCount, -1);
  if (ranks::rank() != 0) std::this_thread::sleep_for(std::chrono::milliseconds(300));
  const std::string error = trial::error_of([&] {
    allreduce(communicator, SegmentList({segment(in, out)}), DType::float32, Op::sum,
              Fingerprint("in vain"));
  });
  EXPECT(!error.empty());
  if (ranks::rank() == 0) EXPECT_EQUAL(error, "Rank 0 has failed.");
  ranks::meet();
  for (float each : out) EXPECT_EQUAL(each, -1.0f);
}
