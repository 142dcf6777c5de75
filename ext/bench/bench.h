// Measures the time of easyddl's allreduce, of other methods, and of lower bounds.
#pragma once

#include <cstddef>
#include <string>

#include "collectives/communicator.h"
#include "mpi/mpi.h"
#include "runtime/topology.h"
#include "runtime/world.h"

namespace easyddl {

// The data of a method: float32 numbers to be summed over all ranks. `scratch` is as long as the
// others. The caller allocates it, so that all memory in the measurement is of one kind.
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
// and lower bounds, which sum nothing:
//   copy         all ranks at once copy the data to other memory and back
//   wire_of_one  one rank of each host sends the data that an allreduce must send across hosts
//   wire_of_all  all leaders of each host send this data
class Bench {
 public:
  // Collective over the world. The method "easyddl" uses `communicator`.
  Bench(World& world, Communicator& communicator);

  // Collective. Calls one method `calls` times after a barrier. Returns the seconds of a call on
  // this rank.
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
