// The level across hosts: collectives over MPI messages between the carriers of a shard.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <vector>

#include "dtype.h"
#include "wait.h"

namespace easyddl {

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

  // Reduces `count` elements in place, always in the order of the ranks. `dtype` must be its
  // own accumulator; a mean is left as a sum.
  void allreduce(void* data, size_t count, DType dtype, Op op, const Idle& idle);

  // Overwrites `data` with that of `root`.
  void broadcast(void* data, size_t bytes, int root, const Idle& idle);

 private:
  void exchange_whole(uint8_t* data, size_t count, DType dtype, Op op, const Idle& idle);
  void exchange_shards(uint8_t* data, size_t count, DType dtype, Op op, const Idle& idle);
  void send(const void* data, size_t bytes, int to);
  void receive(void* data, size_t bytes, int from);
  void finish(const Idle& idle);

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
  bool cores_are_shared_;
  std::vector<MPI_Request> requests_;  // under way, until `finish`
  std::vector<uint8_t> inbox_;
  std::vector<uint8_t> total_;
};

}  // namespace easyddl
