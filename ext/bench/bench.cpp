#include "bench/bench.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <vector>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "collectives/allreduce.h"
#include "collectives/fingerprint.h"
#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTag = 1;

// MPI counts are ints, so longer data is divided into parts of this many elements or bytes.
constexpr size_t kMost = size_t{1} << 30;

// So long that a message's latency does not matter, and so short that many can be in progress.
constexpr size_t kMessageBytes = size_t{4} << 20;

struct Part {
  size_t begin, count;
};

Part part_of(size_t count, int index, int parts) {
  const size_t n = static_cast<size_t>(parts), i = static_cast<size_t>(index);
  const size_t begin = count / n * i + std::min(i, count % n);
  return {begin, count / n + (i < count % n ? 1 : 0)};
}

// Messages that are in progress at the same time.
class Messages {
 public:
  explicit Messages(MPI_Comm comm) : comm_(comm) {}

  void send(const void* data, size_t bytes, size_t most, int to) {
    const auto* from = static_cast<const uint8_t*>(data);
    for (size_t at = 0; at < bytes; at += most) {
      requests_.emplace_back();
      EASYDDL_MPI(MPI_Isend, from + at, static_cast<int>(std::min(most, bytes - at)), MPI_BYTE, to,
                  kTag, comm_, &requests_.back());
    }
  }

  void receive(void* data, size_t bytes, size_t most, int from) {
    auto* to = static_cast<uint8_t*>(data);
    for (size_t at = 0; at < bytes; at += most) {
      requests_.emplace_back();
      EASYDDL_MPI(MPI_Irecv, to + at, static_cast<int>(std::min(most, bytes - at)), MPI_BYTE, from,
                  kTag, comm_, &requests_.back());
    }
  }

  void finish() {
    for (MPI_Request& request : requests_) EASYDDL_MPI(MPI_Wait, &request, MPI_STATUS_IGNORE);
    requests_.clear();
  }

 private:
  MPI_Comm comm_;
  std::vector<MPI_Request> requests_;
};

}  // namespace

Bench::Bench(World& world, Communicator& communicator)
    : topology_(world.topology()),
      communicator_(communicator),
      comm_(MpiComm::duplicate(world.comm())),
      across_(topology_.across.get() == MPI_COMM_NULL
                  ? MpiComm()
                  : MpiComm::duplicate(topology_.across.get())) {}

template <class Call>
double Bench::timed(int calls, Call call) {
  EASYDDL_MPI(MPI_Barrier, comm_.get());
  const Clock::time_point start = Clock::now();
  for (int i = 0; i < calls; ++i) call();
  return std::chrono::duration<double>(Clock::now() - start).count() / calls;
}

double Bench::time(const std::string& method, const BenchData& data, int calls) {
  if (method == "easyddl" || method == "bfloat16" || method == "float16") {
    const std::optional<DType> wire = method == "easyddl" ? std::nullopt : parse_wire_dtype(method);
    const SegmentList segments({{reinterpret_cast<const uint8_t*>(data.in),
                                 reinterpret_cast<uint8_t*>(data.out), data.bytes()}});
    const Fingerprint fingerprint("a benchmark of " + method + " with " +
                                  std::to_string(data.bytes()) + " bytes");
    return timed(calls, [&] {
      easyddl::allreduce(communicator_, segments, DType::float32, Op::sum, fingerprint, wire);
    });
  }
  if (method == "mpi") return timed(calls, [&] { allreduce(data); });
  if (method == "ring") return timed(calls, [&] { ring(data); });
  if (method == "copy") return timed(calls, [&] { copy(data); });
  if (method == "wire_of_one") return timed(calls, [&] { stream(data, 1); });
  if (method == "wire_of_all") return timed(calls, [&] { stream(data, topology_.num_leaders); });
  throw Error("Unknown method of the benchmark: " + method);
}

void Bench::allreduce(const BenchData& data) {
  for (size_t at = 0; at < data.count; at += kMost) {
    const int count = static_cast<int>(std::min(kMost, data.count - at));
    EASYDDL_MPI(MPI_Allreduce, data.in + at, data.out + at, count, MPI_FLOAT, MPI_SUM, comm_.get());
  }
}

// In step s of the reduce-scatter each rank sends its partial sum of part `rank - s` to the next
// rank, and adds its own data to the partial sum of the part before. Afterwards a rank holds the
// sum of part `rank + 1`, and the all-gather takes as many steps again.
void Bench::ring(const BenchData& data) {
  const int n = topology_.size, rank = topology_.rank;
  const int next = (rank + 1) % n, previous = (rank + n - 1) % n;
  const auto part = [&](int index) { return part_of(data.count, (index + 2 * n) % n, n); };
  if (n == 1) std::memcpy(data.out, data.in, data.bytes());
  Messages messages(comm_.get());
  for (int step = 0; step < n - 1; ++step) {
    const Part mine = part(rank - step), theirs = part(rank - step - 1);
    const float* from = (step == 0 ? data.in : data.out) + mine.begin;
    messages.receive(data.scratch, theirs.count * sizeof(float), kMost, previous);
    messages.send(from, mine.count * sizeof(float), kMost, next);
    messages.finish();
    for (size_t i = theirs.begin; i < theirs.begin + theirs.count; ++i) {
      data.out[i] = data.in[i] + data.scratch[i - theirs.begin];
    }
  }
  for (int step = 0; step < n - 1; ++step) {
    const Part mine = part(rank + 1 - step), theirs = part(rank - step);
    messages.receive(data.out + theirs.begin, theirs.count * sizeof(float), kMost, previous);
    messages.send(data.out + mine.begin, mine.count * sizeof(float), kMost, next);
    messages.finish();
  }
}

void Bench::copy(const BenchData& data) {
  std::memcpy(data.scratch, data.in, data.bytes());
  std::memcpy(data.out, data.scratch, data.bytes());
}

// With n hosts, each host must send (n-1)/n of the data to the others to be reduced, and send as
// much again as sums. Here each host sends both to the next host at once.
void Bench::stream(const BenchData& data, int senders) {
  if (across_.get() == MPI_COMM_NULL || topology_.local_rank >= senders) return;
  const int n = topology_.num_nodes;
  const size_t half = data.bytes() - data.bytes() / static_cast<size_t>(n);
  const Part mine = part_of(half, topology_.local_rank, senders);
  const int next = (topology_.node_rank + 1) % n, previous = (topology_.node_rank + n - 1) % n;
  const auto* in = reinterpret_cast<const uint8_t*>(data.in) + mine.begin;
  Messages messages(across_.get());
  for (float* to : {data.out, data.scratch}) {
    messages.receive(reinterpret_cast<uint8_t*>(to) + mine.begin, mine.count, kMessageBytes,
                     previous);
  }
  for (int i = 0; i < 2; ++i) messages.send(in, mine.count, kMessageBytes, next);
  messages.finish();
}

}  // namespace easyddl
