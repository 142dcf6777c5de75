// The choice of the algorithm for arrays in GPU memory, by its cost.
#include "algorithms/gpu_algorithm.h"

#include <string>

#include "levels/nccl_level.h"
#include "trial.h"

namespace {

using namespace easyddl;

constexpr size_t kKi = size_t{1} << 10, kMi = size_t{1} << 20;

// Returns whether `algorithm` is chosen for `hosts` hosts with `ranks` ranks each.
bool is(GpuAlgorithm algorithm, size_t bytes, int hosts, int ranks) {
  return cheapest_gpu_algorithm(bytes, {hosts * ranks, hosts, ranks, ranks}) == algorithm;
}

}  // namespace

TEST(on_one_host_all_goes_by_nccl) {
  for (int ranks : {1, 2, 8}) {
    for (size_t bytes : {size_t{0}, size_t{4}, kMi, 256 * kMi}) {
      EXPECT(is(GpuAlgorithm::nccl, bytes, 1, ranks));
    }
  }
}

// With one rank on each host, NCCL sends no more than the hierarchy, and copies nothing.
TEST(hosts_of_one_gpu_go_by_nccl) {
  for (int hosts : {2, 3, 16}) {
    for (size_t bytes : {4 * kKi, kMi, 256 * kMi}) EXPECT(is(GpuAlgorithm::nccl, bytes, hosts, 1));
  }
}

// With two hosts of four ranks each, a ring sends 1.75 times the data from a host, and the
// hierarchy sends it once.
TEST(much_data_of_hosts_of_several_gpus_goes_by_the_hierarchy) {
  EXPECT(is(GpuAlgorithm::hierarchical, 32 * kMi, 2, 4));
  EXPECT(is(GpuAlgorithm::hierarchical, 32 * kMi, 2, 8));
  EXPECT(is(GpuAlgorithm::nccl, 4 * kKi, 2, 4));
  EXPECT(is(GpuAlgorithm::nccl, 4 * kKi, 2, 8));
}

// The more hosts there are, the smaller is the gain.
TEST(many_hosts_go_by_nccl) { EXPECT(is(GpuAlgorithm::nccl, 32 * kMi, 64, 2)); }

TEST(ways_have_names) {
  EXPECT(!parse_gpu_algorithm("").has_value());
  EXPECT(parse_gpu_algorithm("nccl") == GpuAlgorithm::nccl);
  EXPECT(parse_gpu_algorithm("hierarchical") == GpuAlgorithm::hierarchical);
  EXPECT(parse_gpu_algorithm("host") == GpuAlgorithm::host);
  EXPECT_CONTAINS(trial::error_of([] { parse_gpu_algorithm("fast"); }), "Received: 'fast'");
}

TEST(nccl_knows_not_every_dtype) {
  EXPECT(NcclLevel::supports(DType::bfloat16));
  EXPECT(!NcclLevel::supports(DType::int32));
  EXPECT(!NcclLevel::supports(DType::boolean));
}
