// The level across hosts: collectives over MPI messages between the carriers of a shard.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "dtype.h"
#include "wait.h"

namespace easyddl {

// A reduction on its way across the hosts.
struct Crossing {
  std::vector<uint8_t> data;   // this member's, in accumulators; in the end the result
  size_t count = 0;            // of elements
  std::vector<uint8_t> inbox;  // the others' parts of this member's shard
  std::vector<MPI_Request> requests;
};

// Built on point-to-point messages rather than on MPI's own collectives, which promise
// neither the order of a sum nor equal bits on all ranks.
class MpiLevel {
 public:
  // `comm` may be null: a level with this rank as its only member.
  MpiLevel(MPI_Comm comm, bool cores_are_shared);

  int rank() const { return rank_; }
  int size() const { return size_; }

  // Every member's value, by rank.
  std::vector<uint64_t> all_gather(uint64_t value, const Idle& idle);

  // Reduces a crossing's data, always in the order of the ranks. `dtype` must be its own
  // accumulator; a mean is left as a sum.
  void allreduce(Crossing& crossing, DType dtype, Op op, const Idle& idle);

  // The same in steps, so that several crossings can be under way at a time, and the wire has
  // work while this rank has other. All members must take the steps of their crossings in the
  // same order: scatter, gather, collect.
  void scatter(Crossing& crossing, DType dtype);
  void gather(Crossing& crossing, DType dtype, Op op, const Idle& idle);
  void collect(Crossing& crossing, const Idle& idle);

  // Moves on what is under way. True if nothing is.
  bool progress(Crossing& crossing);

  // Overwrites `data` with that of `root`.
  void broadcast(void* data, size_t bytes, int root, const Idle& idle);

 private:
  void exchange_whole(Crossing& crossing, DType dtype, Op op, const Idle& idle);
  void send(const void* data, size_t bytes, int to, std::vector<MPI_Request>& requests);
  void receive(void* data, size_t bytes, int from, std::vector<MPI_Request>& requests);
  void finish(std::vector<MPI_Request>& requests, const Idle& idle);

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool cores_are_shared_;
  std::vector<uint8_t> total_;
};

}  // namespace easyddl
