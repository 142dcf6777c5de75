#include "levels/direct_level.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <thread>

#include "arrays/arithmetic.h"
#include "common/check.h"
#include "common/console.h"
#include "mpi/mpi.h"
#include "profiling/trace.h"
#include "runtime/job_abort.h"

namespace easyddl {
namespace {

// Two cache lines, because processors fetch lines in pairs.
constexpr size_t kLine = 128;

// The copies of a block from all other members should together fit in a core's cache. Blocks of
// less than a few pages cost more in system calls than in copying.
constexpr size_t kCopies = 128 << 10;
constexpr size_t kLeastBlock = 16 << 10;
constexpr size_t kPage = 4096;

// How long a failing rank waits for ranks that still access its arrays. A block takes less than a
// millisecond, but a rank may lose its core for a while.
constexpr std::chrono::seconds kWithdrawTimeout{10};

}  // namespace

// The progress of a reduction, in the slot of member 0.
struct DirectLevel::BlockProgress {
  alignas(kLine) std::atomic<uint32_t> next{0};
  alignas(kLine) FutexCounter done;
};

// The addresses of a member's arrays, in its own slot. All but the atomic words is written before
// the phase ends.
struct DirectLevel::Announcement {
  alignas(kLine) std::atomic<uint32_t> is_at_work{0};  // whether it accesses the arrays of others
  alignas(kLine) std::atomic<uint32_t> is_withdrawn{0};
  bool is_reachable = false;
  size_t count = 0;
  Segment segments[1];
};

DirectLevel::DirectLevel(const Topology& topology, SharedMemoryLevel& shared_memory)
    : shared_memory_(shared_memory),
      cores_are_shared_(topology.cores_are_shared),
      is_possible_(topology.num_nodes == 1 && topology.local_size > 1 && reach_all(topology)),
      credentials_(ProcessCredentials::of_this_process()),
      sources_(static_cast<size_t>(topology.local_size)),
      copies_(static_cast<size_t>(topology.local_size)) {}

// Finds out by trying, because not all restrictions (Yama, seccomp, user namespaces) can be
// queried.
bool DirectLevel::reach_all(const Topology& topology) {
  struct Word {
    int64_t process;
    uint64_t* address;
    uint64_t value;
  };
  uint64_t word = 0;
  const Word mine{getpid(), &word, reinterpret_cast<uintptr_t>(&word) ^ 0x9e3779b97f4a7c15};
  word = mine.value;
  int reached = 1;
  for (const Word& each :
       gather(topology.host.get(), mine)) {  // on one host, a member's number is its rank
    const auto process = static_cast<pid_t>(each.process);
    processes_.push_back({process, topology.name_of(static_cast<int>(processes_.size()))});
    if (!PeerMemory::holds(process, each.address, each.value)) reached = 0;
  }
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &reached, 1, MPI_INT, MPI_MIN, topology.host.get());
  return reached == 1;
}

DirectLevel::BlockProgress& DirectLevel::progress(uint32_t phase) {
  return *reinterpret_cast<BlockProgress*>(shared_memory_.slot(0, phase));
}

DirectLevel::Announcement& DirectLevel::announcement(int member, uint32_t phase) {
  return *reinterpret_cast<Announcement*>(shared_memory_.slot(member, phase) +
                                          sizeof(BlockProgress));
}

size_t DirectLevel::most_segments() const {
  return (shared_memory_.slot_bytes() - sizeof(BlockProgress) - sizeof(Announcement)) /
         sizeof(Segment);
}

DirectLevel::Offer::Offer(DirectLevel& level, const SegmentList& data, uint32_t phase)
    : level_(level), phase_(phase) {
  if (level_.shared_memory_.rank() == 0) new (&level_.progress(phase)) BlockProgress;
  Announcement& mine =
      *new (&level_.announcement(level_.shared_memory_.rank(), phase)) Announcement;
  size_t count = 0;
  data.for_each(0, data.bytes(), [&](const uint8_t* in, uint8_t* out, size_t, size_t bytes) {
    if (count < level_.most_segments()) mine.segments[count] = {in, out, bytes};
    ++count;
  });
  mine.count = count;
  // The kernel would refuse access if the credentials of this process have changed.
  mine.is_reachable =
      count <= level_.most_segments() && !level_.is_protected() && PeerMemory::is_reachable(data);
}

DirectLevel::Offer::~Offer() {
  if (is_open_) level_.withdraw(phase_);
}

bool DirectLevel::are_all_reachable(uint32_t phase) {
  for (int member = 0; member < shared_memory_.size(); ++member) {
    if (!announcement(member, phase).is_reachable) return false;
  }
  return true;
}

bool DirectLevel::is_withdrawn(uint32_t phase) {
  for (int member = 0; member < shared_memory_.size(); ++member) {
    if (announcement(member, phase).is_withdrawn.load() != 0) return true;
  }
  return false;
}

// The arrays are about to be freed. A rank that starts a block later sees the withdrawal, because
// it sets `is_at_work` before it checks.
void DirectLevel::withdraw(uint32_t phase) {
  announcement(shared_memory_.rank(), phase).is_withdrawn.store(1);
  // Without a fence between the store and the load of another word, the processor may load first
  // (on aarch64 with LDAPR). Then this rank and the last one to arrive could miss each other.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!shared_memory_.have_all_ended(phase)) return;  // no member has begun to access them
  const auto end = std::chrono::steady_clock::now() + kWithdrawTimeout;
  for (int member = 0; member < shared_memory_.size(); ++member) {
    if (member == shared_memory_.rank()) continue;
    while (announcement(member, phase).is_at_work.load() != 0) {
      if (std::chrono::steady_clock::now() > end) end_job_for_stopped(member);
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

// A rank that is stopped in the middle of a block would later write to memory that this rank has
// freed and reused.
void DirectLevel::end_job_for_stopped(int member) const {
  write_line(
      "easyddl: " + processes_[static_cast<size_t>(member)].name +
      " is stopped while it accesses the arrays of another rank, whose reduction has failed. "
      "Ending the job.");
  end_job(1);
}

// Short data is divided into so many blocks that each rank gets some.
size_t DirectLevel::block_bytes(size_t bytes) const {
  const size_t members = static_cast<size_t>(shared_memory_.size());
  const size_t block = std::min(kCopies / (members - 1), bytes / (2 * members));
  return (std::max(block, kLeastBlock) + kPage - 1) / kPage * kPage;
}

void DirectLevel::reduce(const SegmentList& data, uint32_t phase, DType dtype, Op op, int divisor,
                         const Idle& idle) {
  peers_.clear();
  for (int member = 0; member < shared_memory_.size(); ++member) {
    const Announcement& theirs = announcement(member, phase);
    peers_.emplace_back(processes_[static_cast<size_t>(member)],
                        SegmentList({theirs.segments, theirs.segments + theirs.count}));
  }
  struct AtWork {  // set while this rank accesses the memory of others
    std::atomic<uint32_t>& word;
    explicit AtWork(std::atomic<uint32_t>& w) : word(w) { word.store(1); }
    ~AtWork() { word.store(0); }
  };
  const size_t block = block_bytes(data.bytes());
  const auto blocks = static_cast<uint32_t>((data.bytes() + block - 1) / block);
  BlockProgress& shared = progress(phase);
  for (uint32_t i = shared.next.fetch_add(1); i < blocks; i = shared.next.fetch_add(1)) {
    const AtWork at_work(announcement(shared_memory_.rank(), phase).is_at_work);
    const size_t begin = i * block, end = std::min(data.bytes(), begin + block);
    // If a member has died or failed, the block is never finished, and the ranks that wait for it
    // get the error.
    if (is_withdrawn(phase) || !reduce_block(data, begin, end, dtype, op, divisor)) break;
    shared.done.advance(blocks);
  }
  const Span span("wait in the host");
  shared.done.wait(blocks, cores_are_shared_, idle);
}

// Returns false if the process of a member no longer exists.
bool DirectLevel::reduce_block(const SegmentList& data, size_t begin, size_t end, DType dtype,
                               Op op, int divisor) {
  const auto at = [](int member) { return static_cast<size_t>(member); };
  const int me = shared_memory_.rank(), members = shared_memory_.size();
  {
    const Span span("copy in", end - begin);
    for (int i = 1; i < members; ++i) {  // so that members do not all read from the same one
      const int member = (me + i) % members;
      std::vector<uint8_t>& copy = copies_[at(member)];
      copy.resize(std::max(copy.size(), end - begin));
      if (!peers_[at(member)].read(begin, end, copy.data())) return false;
    }
  }
  {
    const Span span("reduce", end - begin);
    data.for_each(begin, end, [&](const uint8_t* in, uint8_t* out, size_t offset, size_t bytes) {
      for (int member = 0; member < members; ++member) {
        sources_[at(member)] = member == me ? in : copies_[at(member)].data() + offset;
      }
      accumulate_and_finish(out, sources_.data(), sources_.size(), bytes / size_of(dtype), dtype,
                            op, divisor);
    });
  }
  const Span span("copy out", end - begin);
  for (int i = 1; i < members; ++i) {
    if (!peers_[at((me + i) % members)].write(begin, end, data)) return false;
  }
  return true;
}

}  // namespace easyddl
