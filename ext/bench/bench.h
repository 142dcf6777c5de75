// Timing easyddl's allreduce beside other methods, and beside what bounds them.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/communicator.h"
#include "mpi/mpi.h"
#include "runtime/topology.h"
#include "runtime/world.h"

namespace easyddl {

// What a method works on: float32 numbers to be summed over all ranks. `scratch` is as long as
// the others. It comes from the caller, so that all the memory that is timed is of one kind.
struct BenchData {
  const float* in;
  float* out;
  float* scratch;
  size_t count;

  size_t bytes() const { return count * sizeof(float); }
};

// The methods, by name:
//   easyddl      the communicator's allreduce
//   mpi          MPI_Allreduce of the MPI in use
//   ring         a flat ring over all ranks: reduce-scatter and all-gather, with no hierarchy
// and what bounds them, which sums nothing:
//   copy         every rank at once copies the data into other memory, and out of it
//   wire_of_one  every host at once sends what an allreduce must send across hosts, by one rank
//   wire_of_all  the same, by as many ranks as each host has
class Bench {
 public:
  // Collective over the world. `communicator` is the one that the method "easyddl" uses.
  Bench(World& world, Communicator& communicator);

  // Collective. Calls one method `calls` times, all ranks beginning at once; the seconds that a
  // call took on this rank.
  double time(const std::string& method, const BenchData& data, int calls);

 private:
  template <class Call>
  double timed(int calls, Call call);

  void allreduce(const BenchData& data);
  void ring(const BenchData& data);
  void copy(const BenchData& data);
  void stream(const BenchData& data, int senders);

  const Topology& topology_;
  Communicator& communicator_;
  MpiComm comm_;
  MpiComm across_;  // null if this rank is no leader
};

}  // namespace easyddl
