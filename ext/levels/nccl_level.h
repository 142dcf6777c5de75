// The level of NCCL: a communicator of ranks that have a GPU each.
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

// How sources are reduced: as they are, or each multiplied by a factor of its rank's own first. A
// mean is such a sum.
struct Reduction {
  Op op = Op::sum;
  bool is_scaled = false;
  double factor = 1;
};

// All calls only queue work on a stream, in the order of the calls, which is the same on all
// ranks. NCCL computes 16-bit floats in its own way, rounding more often than the hosts do: to
// 16 bits after the multiplication, and in most of its algorithms after every addition.
class NcclLevel {
 public:
  // Whether NCCL can reduce such elements.
  static bool supports(DType dtype, const Reduction& reduction);

  static NcclId new_id();

  // Collective over the ranks that are given the same id. The GPU's context is current, and
  // stays so on the thread that makes the calls. `idle` is called while it waits for the others.
  NcclLevel(const NcclId& id, int size, int rank, const Idle& idle);
  // Ends what is in progress: NCCL's own orderly way needs all ranks, which come at different
  // times.
  ~NcclLevel();
  NcclLevel(const NcclLevel&) = delete;
  NcclLevel& operator=(const NcclLevel&) = delete;

  // In one launch, however many arrays there are.
  void allreduce(const std::vector<Segment>& arrays, DType dtype, const Reduction& reduction,
                 CudaStream stream, const Idle& idle);

  // `data` holds as many shards of `count` elements as there are owners, the first ranks. After
  // `reduce_shards` each owner's own holds its sum; after `gather_shards` all have all of them.
  void reduce_shards(uint8_t* data, size_t count, int owners, DType dtype,
                     const Reduction& reduction, CudaStream stream, const Idle& idle);
  void gather_shards(uint8_t* data, size_t count, int owners, DType dtype, CudaStream stream,
                     const Idle& idle);

  // Throws if NCCL has met an error since.
  void check() const;

  // Nothing can follow. Kernels that wait for other ranks end.
  void abort();

 private:
  int operation(DType dtype, const Reduction& reduction, const Idle& idle);
  void settle(int code, const char* call, const Idle& idle) const;
  void enlist(int code, const char* call) const;
  [[noreturn]] void fail(int code, const std::string& call) const;

  NcclComm comm_ = nullptr;
  int size_, rank_;
  // The last operator that multiplies, and what it multiplies by.
  int scaled_sum_ = -1;
  DType scaled_dtype_ = DType::float32;
  double scaled_factor_ = 0;
};

}  // namespace easyddl
