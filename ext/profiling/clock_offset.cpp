#include "profiling/clock_offset.h"

#include <limits>

#include "common/check.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

constexpr int kTag = 4;
constexpr int kRounds = 20;

class Peer {
 public:
  Peer(MPI_Comm comm, int rank, bool cores_are_shared)
      : comm_(comm), rank_(rank), cores_are_shared_(cores_are_shared) {}

  void send(int64_t value) {
    MPI_Request request;
    EASYDDL_MPI(MPI_Isend, &value, 1, MPI_INT64_T, rank_, kTag, comm_, &request);
    wait(request);
  }

  int64_t receive() {
    int64_t value = 0;
    MPI_Request request;
    EASYDDL_MPI(MPI_Irecv, &value, 1, MPI_INT64_T, rank_, kTag, comm_, &request);
    wait(request);
    return value;
  }

 private:
  void wait(MPI_Request& request) {
    wait_requests(&request, 1, cores_are_shared_, [] {});
  }

  MPI_Comm comm_;
  int rank_;
  bool cores_are_shared_;
};

}  // namespace

ClockOffset measure_clock_offset(MPI_Comm comm, bool cores_are_shared) {
  if (rank_in(comm) == 0) {
    for (int other = 1; other < size_in(comm); ++other) {
      Peer peer(comm, other, cores_are_shared);
      for (int round = 0; round < kRounds; ++round) {
        peer.receive();
        peer.send(Trace::now());
      }
    }
    return {Trace::now(), 0, 0};
  }
  Peer root(comm, 0, cores_are_shared);
  ClockOffset best{0, 0, std::numeric_limits<int64_t>::max()};
  for (int round = 0; round < kRounds; ++round) {
    const int64_t asked = Trace::now();
    root.send(0);
    const int64_t its = root.receive();
    const int64_t half = (Trace::now() - asked + 1) / 2;
    if (half < best.error) best = {asked + half, its - (asked + half), half};
  }
  return best;
}

}  // namespace easyddl
