#include "levels/nccl_level.h"

#include <utility>

#include "arrays/arithmetic.h"
#include "common/check.h"

namespace easyddl {
namespace {

// Returns the ncclDataType_t of a floating-point dtype; -1 for any other.
int nccl_type(DType dtype) {
  switch (dtype) {
    case DType::float16:
      return 6;
    case DType::float32:
      return 7;
    case DType::float64:
      return 8;
    case DType::bfloat16:
      return 9;
    default:
      return -1;
  }
}

constexpr int kHostImmediate = 1;  // ncclScalarHostImmediate: the scalar is read in the call

// Ends an NCCL group also after an exception, because an open group would capture all later calls
// of this thread.
class Group {
 public:
  Group() { nccl().GroupStart(); }
  ~Group() {
    if (is_open_) nccl().GroupEnd();
  }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  int end() {
    is_open_ = false;
    return nccl().GroupEnd();
  }

 private:
  bool is_open_ = true;
};

}  // namespace

bool NcclLevel::supports(DType dtype) { return nccl_type(dtype) >= 0; }

NcclId NcclLevel::new_id() {
  NcclId id{};
  const int code = nccl().GetUniqueId(&id);
  if (code != kNcclSuccess) {
    throw Error(std::string("ncclGetUniqueId failed: ") + nccl().GetErrorString(code) + ". " +
                nccl().GetLastError(nullptr));
  }
  return id;
}

NcclLevel::NcclLevel(const NcclId& id, int size, int rank, const Idle& idle)
    : size_(size), rank_(rank) {
  NcclConfig config;
  try {
    complete(nccl().CommInitRankConfig(&comm_, size, id, rank, &config), "ncclCommInitRankConfig",
             idle);
  } catch (...) {
    abort();
    throw;
  }
}

NcclLevel::~NcclLevel() { abort(); }

void NcclLevel::abort() {
  if (comm_ != nullptr) nccl().CommAbort(std::exchange(comm_, nullptr));
}

void NcclLevel::fail(int code, const std::string& call) const {
  std::string text = call + " failed: " + nccl().GetErrorString(code) + " (NCCL " +
                     nccl_version_text(nccl().version) + ", error " + std::to_string(code) + ")";
  const char* more = nccl().GetLastError(comm_);
  if (more != nullptr && more[0] != '\0') text += std::string(": ") + more;
  throw Error(text + ". Set NCCL_DEBUG=WARN for more of NCCL's messages.");
}

// Waits until a call has completed. The communicator is non-blocking, so a long call continues in
// the background.
void NcclLevel::complete(int code, const char* call, const Idle& idle) const {
  if (code == kNcclInProgress) {
    const auto ended = [&] {
      int state = kNcclSuccess;
      code = nccl().CommGetAsyncError(comm_, &state);
      if (code == kNcclSuccess) code = state;
      return code != kNcclInProgress;
    };
    poll(ended, true, idle);
  }
  if (code != kNcclSuccess) fail(code, call);
}

// Checks a call within a group, which begins only when the group ends.
void NcclLevel::check_queued(int code, const char* call) const {
  if (code != kNcclSuccess && code != kNcclInProgress) fail(code, call);
}

void NcclLevel::check() const {
  int state = kNcclSuccess;
  const int code = nccl().CommGetAsyncError(comm_, &state);
  if (code != kNcclSuccess) fail(code, "ncclCommGetAsyncError");
  if (state != kNcclSuccess && state != kNcclInProgress) fail(state, "An NCCL collective");
}

// Returns the operator, which is kept until another factor is needed.
int NcclLevel::scaled_sum(DType dtype, double factor, const Idle& idle) {
  const bool fits = scaled_dtype_ == dtype && scaled_factor_ == factor;
  if (scaled_sum_ >= 0 && fits) return scaled_sum_;
  if (scaled_sum_ >= 0) {
    complete(nccl().RedOpDestroy(std::exchange(scaled_sum_, -1), comm_), "ncclRedOpDestroy", idle);
  }
  uint64_t scalar = 0;  // in the elements' own type
  if (dtype == DType::float64) {
    scale(&scalar, &factor, 1, DType::float64, 1);
  } else {
    const float single = static_cast<float>(factor);
    const void* const source = &single;
    // A sum of one source, which rounds a float32 to 16 bits.
    finish(&scalar, source, 1, dtype, Op::sum, 1);
  }
  complete(
      nccl().RedOpCreatePreMulSum(&scaled_sum_, &scalar, nccl_type(dtype), kHostImmediate, comm_),
      "ncclRedOpCreatePreMulSum", idle);
  scaled_dtype_ = dtype;
  scaled_factor_ = factor;
  return scaled_sum_;
}

void NcclLevel::allreduce(const std::vector<Segment>& arrays, DType dtype, double factor,
                          CudaStream stream, const Idle& idle) {
  const int op = scaled_sum(dtype, factor, idle);
  Group group;
  for (const Segment& array : arrays) {
    if (array.bytes == 0) continue;
    check_queued(nccl().AllReduce(array.in, array.out, array.bytes / size_of(dtype),
                                  nccl_type(dtype), op, comm_, stream),
                 "ncclAllReduce");
  }
  complete(group.end(), "ncclGroupEnd (of ncclAllReduce)", idle);
}

void NcclLevel::reduce_shards(uint8_t* data, size_t count, int owners, DType dtype, double factor,
                              CudaStream stream, const Idle& idle) {
  if (count == 0) return;
  const int op = scaled_sum(dtype, factor, idle), type = nccl_type(dtype);
  const size_t bytes = count * size_of(dtype);
  const auto shard = [&](int owner) { return data + static_cast<size_t>(owner) * bytes; };
  if (owners == size_) {
    return complete(nccl().ReduceScatter(data, shard(rank_), count, type, op, comm_, stream),
                    "ncclReduceScatter", idle);
  }
  Group group;
  for (int owner = 0; owner < owners; ++owner) {
    check_queued(nccl().Reduce(shard(owner), shard(owner), count, type, op, owner, comm_, stream),
                 "ncclReduce");
  }
  complete(group.end(), "ncclGroupEnd (of ncclReduce)", idle);
}

void NcclLevel::gather_shards(uint8_t* data, size_t count, int owners, DType dtype,
                              CudaStream stream, const Idle& idle) {
  if (count == 0) return;
  const int type = nccl_type(dtype);
  const size_t bytes = count * size_of(dtype);
  const auto shard = [&](int owner) { return data + static_cast<size_t>(owner) * bytes; };
  if (owners == size_) {
    return complete(nccl().AllGather(shard(rank_), data, count, type, comm_, stream),
                    "ncclAllGather", idle);
  }
  Group group;
  for (int owner = 0; owner < owners; ++owner) {
    check_queued(nccl().Broadcast(shard(owner), shard(owner), count, type, owner, comm_, stream),
                 "ncclBroadcast");
  }
  complete(group.end(), "ncclGroupEnd (of ncclBroadcast)", idle);
}

}  // namespace easyddl
