// The errors of messages that fail.
#include <cstdint>
#include <string>
#include <vector>

#include "mpi/requests.h"
#include "ranks.h"
#include "trial.h"

using namespace easyddl;

// MPI_Testall would end the job here, with a text that only refers to a status.
TEST(the_cause_of_a_failed_message_is_given) {
  const MpiComm comm = MpiComm::duplicate(MPI_COMM_WORLD);
  const int next = (ranks::rank() + 1) % ranks::size();
  const int previous = (ranks::rank() + ranks::size() - 1) % ranks::size();
  const std::vector<uint8_t> leaving(64);
  std::vector<uint8_t> coming(64), other(64);
  std::vector<MPI_Request> requests(4);
  EASYDDL_MPI(MPI_Irecv, coming.data(), 3, MPI_BYTE, previous, 7, comm.get(),
              &requests[0]);  // too short
  EASYDDL_MPI(MPI_Irecv, other.data(), 64, MPI_BYTE, previous, 8, comm.get(), &requests[1]);
  EASYDDL_MPI(MPI_Isend, leaving.data(), 64, MPI_BYTE, next, 7, comm.get(), &requests[2]);
  EASYDDL_MPI(MPI_Isend, leaving.data(), 64, MPI_BYTE, next, 8, comm.get(), &requests[3]);
  const std::string error =
      trial::error_of([&] { wait_requests(requests.data(), 4, true, [] {}); });
  EXPECT_CONTAINS(error, "MPI_Test failed");
  EXPECT_CONTAINS(error, "truncat");
  EXPECT(error.find("MPI_ERROR field") == std::string::npos);
  ranks::meet();
}
