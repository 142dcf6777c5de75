// The level across hosts, and the one across racks: MPI messages between the leaders of a shard.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "algorithms/inter_host_algorithm.h"
#include "algorithms/schedule.h"
#include "arrays/dtype.h"
#include "mpi/mpi.h"
#include "runtime/topology.h"

namespace easyddl {

// Built on point-to-point messages rather than on MPI's own collectives, which promise
// neither the order of a sum nor equal bits on all ranks.
class MpiLevel {
 public:
  // Without an `algorithm` the cheapest is taken, by the size of the data. The communicators are
  // the topology's: schedules of different tags share them.
  MpiLevel(const Topology& topology, std::optional<InterHostAlgorithm> algorithm);

  // Adds the step after which the schedule's data are every host's value, by its number.
  void plan_all_gather(Schedule& schedule, uint64_t value) const;

  // Adds the steps that reduce a schedule's data over all hosts, always in the same order.
  // `dtype` must be its own accumulator; a mean is left as a sum. All leaders of the shard must
  // begin their schedules in one order; then the steps of several may mix in any way.
  void plan_allreduce(Schedule& schedule, DType dtype, Op op);

  // The same for `count` elements on a GPU, which MPI takes from there and puts there. `mine` is
  // the host's memory for `part_of`, this leader's part of them, which has been copied to it and
  // in the end must be copied back. `factors`, by host, are what each one's elements are still to
  // be multiplied by; there may be none.
  void plan_allreduce_on_gpu(Schedule& schedule, uint8_t* data, size_t count, uint8_t* mine,
                             DType dtype, Op op, const std::vector<double>& factors);
  InterHostOperation::Shard part_of(size_t count) const;

  // Adds the step that overwrites `data` with that of host `root`.
  void plan_broadcast(Schedule& schedule, uint8_t* data, size_t bytes, int root) const;

 private:
  // Among whom a shard is cut up further: the hosts, or those of a rack, and then the racks.
  struct Members {
    Members(const MpiComm& comm, int owners);
    InterHostOperation operation(uint8_t* data, size_t count, DType dtype, Op op) const;
    MPI_Comm comm;
    int rank = 0, size = 1, owners;
  };

  void plan(size_t level, Schedule& schedule, uint8_t* data, size_t count, DType dtype, Op op);

  MPI_Comm across_;
  int rank_ = 0, size_ = 1;  // of this host among all
  std::vector<Members> levels_;
  std::vector<size_t> hosts_;  // of the first level's members
  std::optional<InterHostAlgorithm> algorithm_;
};

}  // namespace easyddl
