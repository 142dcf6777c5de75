// The levels across hosts, racks and larger groups: MPI messages between the leaders of a shard.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "algorithms/algorithm_rules.h"
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
  // Without rules, the cheapest algorithm is used for each size of data. Schedules of different
  // tags share the communicators of the topology.
  MpiLevel(const Topology& topology, const AlgorithmRules& rules);

  // Adds the step that gathers the values of all hosts, in their order, in the schedule's data.
  void plan_all_gather(Schedule& schedule, uint64_t value) const;

  // Adds the steps that reduce a schedule's data over all hosts, always in the same order. `dtype`
  // must be its own accumulator. For a mean the steps compute the sum. All leaders of the shard
  // must begin their schedules in the same order; the steps of several schedules may then
  // interleave in any way. `all_bytes` is the size of the data of which the schedule reduces a
  // part, as a host has it in the type `dtype`: the rules depend on it. By the rule `flat` all
  // hosts form one level. Elements are sent in the type `wire`; the rules then depend on their size
  // in that type.
  void plan_allreduce(Schedule& schedule, DType dtype, Op op, size_t all_bytes,
                      std::optional<DType> wire = std::nullopt);

  // The same for a sum of `count` elements in GPU memory, which MPI reads and writes directly.
  // `mine` is host memory for this leader's part, `part_of`: the caller has copied the part there,
  // and copies it back at the end. The rule `flat` has no effect. `factors` holds a factor for the
  // elements of each host; it may be empty.
  void plan_sum_on_gpu(Schedule& schedule, uint8_t* data, size_t count, uint8_t* mine, DType dtype,
                       const std::vector<double>& factors, size_t all_bytes);
  InterHostOperation::Shard part_of(size_t count) const;

  // Adds the step that overwrites `data` with the data of host `root`.
  void plan_broadcast(Schedule& schedule, uint8_t* data, size_t bytes, int root) const;

 private:
  // The members of a group, which divide a shard further: see Topology::Level.
  struct Members {
    Members(const MpiComm& comm, int owners, bool all_alone);
    InterHostOperation operation(uint8_t* data, size_t count, DType dtype, Op op) const;
    // Returns the operation of these members on the data of another one.
    InterHostOperation operation_on(const InterHostOperation& whole, bool is_last) const;
    MPI_Comm comm;
    int rank = 0, size = 1, owners;
    bool are_all_alone;  // no group of the level has a second member
  };

  void exchange(Schedule& schedule, uint8_t* values, size_t bytes) const;
  void plan_scaling(Schedule& schedule) const;
  void plan(const std::vector<Members>& levels, size_t level, Schedule& schedule,
            const InterHostOperation& whole, size_t all_bytes);

  MPI_Comm across_;
  int rank_ = 0, size_ = 1;  // of this host among all hosts
  std::vector<Members> levels_, flat_;
  std::vector<size_t> hosts_;  // of the first level's members
  AlgorithmRules rules_;
};

}  // namespace easyddl
