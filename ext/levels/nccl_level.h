// The NCCL level: an NCCL communicator of ranks that have a GPU each.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "common/wait.h"
#include "gpu/memory.h"
#include "gpu/nccl_library.h"

namespace easyddl {

// Sums arrays over ranks. Each rank first multiplies its elements by its own factor, so that the
// sum may be a weighted mean.
//
// All calls only queue work on a stream. All ranks must make the same calls in the same order. NCCL
// rounds 16-bit floats more often than the hosts do: after the multiplication, and in most of its
// algorithms after every addition.
class NcclLevel {
 public:
  // Whether NCCL supports such sums of elements of this dtype.
  static bool supports(DType dtype);

  static NcclId new_id();

  // Collective over the ranks that pass the same id. The GPU's context must be current, here and on
  // each thread that calls a member. `idle` is called while it waits for the others.
  NcclLevel(const NcclId& id, int size, int rank, const Idle& idle);
  // Aborts work in progress, because ncclCommFinalize needs all ranks at the same time.
  ~NcclLevel();
  NcclLevel(const NcclLevel&) = delete;
  NcclLevel& operator=(const NcclLevel&) = delete;

  // Sums all arrays in one launch.
  void allreduce(const std::vector<Segment>& arrays, DType dtype, double factor, CudaStream stream,
                 const Idle& idle);

  // `data` holds one shard of `count` elements for each owner. The owners are the first ranks.
  // `reduce_shards` gives each owner the sum of its shard; `gather_shards` gives all ranks all
  // shards.
  void reduce_shards(uint8_t* data, size_t count, int owners, DType dtype, double factor,
                     CudaStream stream, const Idle& idle);
  void gather_shards(uint8_t* data, size_t count, int owners, DType dtype, CudaStream stream,
                     const Idle& idle);

  // Throws if NCCL reports an asynchronous error.
  void check() const;

  // Aborts the communicator, which ends kernels that wait for other ranks. It cannot be used after
  // this.
  void abort();

 private:
  int scaled_sum(DType dtype, double factor, const Idle& idle);
  void complete(int code, const char* call, const Idle& idle) const;
  void check_queued(int code, const char* call) const;
  [[noreturn]] void fail(int code, const std::string& call) const;

  NcclComm comm_ = nullptr;
  int size_, rank_;
  // The last operator, with its dtype and factor.
  int scaled_sum_ = -1;
  DType scaled_dtype_ = DType::float32;
  double scaled_factor_ = 0;
};

}  // namespace easyddl
