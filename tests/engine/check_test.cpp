// Errors name the call that fails. These tests need MPI.
#include "common/check.h"

#include <unistd.h>

#include <cerrno>

#include "mpi/mpi.h"
#include "ranks.h"
#include "runtime/shared_segment.h"
#include "runtime/topology.h"
#include "trial.h"

using namespace easyddl;

TEST(an_error_of_mpi_names_the_call) {
  const MpiComm comm = MpiComm::duplicate(MPI_COMM_WORLD);
  const int value = 0;
  const std::string error = trial::error_of(
      [&] { EASYDDL_MPI(MPI_Send, &value, 1, MPI_INT, ranks::size() + 7, 0, comm.get()); });
  EXPECT_CONTAINS(error, "MPI_Send failed: ");
  EXPECT(error.size() > 20);
}

TEST(an_error_of_the_system_names_the_call) {
  const std::string error =
      trial::error_of([] { check_system(close(-1), "close of no descriptor"); });
  EXPECT_EQUAL(error, "close of no descriptor failed: Bad file descriptor");
}

TEST(shared_memory_that_is_not_to_be_had_says_how_much) {
  const std::string error =
      trial::error_of([] { SharedSegment segment(MPI_COMM_SELF, size_t{1} << 63); });
  EXPECT_CONTAINS(error, "ftruncate to 9223372036854775808 bytes of shared memory failed: ");
}

TEST(shared_memory_begins_with_zeros) {
  const SharedSegment segment(ranks::world().topology().host.get(), 100);
  const auto* bytes = static_cast<const unsigned char*>(segment.data());
  for (int i = 0; i < 100; ++i) EXPECT_EQUAL(bytes[i], 0);
}
