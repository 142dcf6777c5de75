#include "levels/peer_memory.h"

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "trial.h"

namespace {

using namespace easyddl;

// More arrays than the kernel accepts in one call, of three bytes each, with a gap of one byte
// between them.
constexpr size_t kArrays = 3000, kBytes = 3, kStep = 4;

struct Memory {
  Memory() : in(kArrays * kStep), out(in.size(), 0xee) {
    for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(i * 7);
  }
  SegmentList segments() {
    std::vector<Segment> list;
    for (size_t i = 0; i < kArrays; ++i) {
      list.push_back({in.data() + i * kStep, out.data() + i * kStep, kBytes});
    }
    return SegmentList(std::move(list));
  }
  std::vector<uint8_t> in, out;
};

// A fork of this process that does nothing, and is killed at the end of the scope.
class Child {
 public:
  Child() : process_(fork()) {
    if (process_ == 0) {
      while (true) pause();
    }
    EXPECT(process_ > 0);
  }
  ~Child() { end(); }
  void end() {
    if (process_ <= 0) return;
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  pid_t process() const { return process_; }

 private:
  pid_t process_;
};

}  // namespace

TEST(arrays_of_another_process_are_read_and_written) {
  Memory memory;
  uint64_t word = 42;
  Child child;
  if (!PeerMemory::holds(child.process(), &word, 42)) return;  // forbidden here
  EXPECT(!PeerMemory::holds(child.process(), &word, 43));
  const PeerProcess process{child.process(), "the child"};
  const PeerMemory peer(process, memory.segments());
  const std::vector<uint8_t> in = memory.in;
  std::fill(memory.in.begin(), memory.in.end(), uint8_t{0});  // the child's stay
  const size_t begin = 2, end = kArrays * kBytes - 1;
  std::vector<uint8_t> copy(end);
  EXPECT(peer.read(begin, end, copy.data() + begin));
  for (size_t i = begin; i < end; ++i) EXPECT_EQUAL(copy[i], in[i / kBytes * kStep + i % kBytes]);

  for (size_t i = 0; i < memory.out.size(); ++i) memory.out[i] = static_cast<uint8_t>(i * 5);
  EXPECT(peer.write(begin, end, memory.segments()));
  const PeerMemory theirs(process, SegmentList({{memory.out.data(), nullptr, kArrays * kStep}}));
  std::vector<uint8_t> written(kArrays * kStep);
  EXPECT(theirs.read(0, written.size(), written.data()));
  for (size_t i = 0; i < written.size(); ++i) {
    const size_t at = i / kStep * kBytes + i % kStep;
    const bool is_within = i % kStep < kBytes && at >= begin && at < end;
    EXPECT_EQUAL(written[i], is_within ? memory.out[i] : 0xee);
  }
}

TEST(a_process_that_has_ended_is_distinguished_from_an_error) {
  Memory memory;
  uint64_t word = 42;
  void* const page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Child child;
  if (!PeerMemory::holds(child.process(), &word, 42)) return;
  std::vector<uint8_t> copy(4096);
  const PeerProcess process{child.process(), "the child"};
  const PeerMemory unreadable(process,
                              SegmentList({{static_cast<uint8_t*>(page), nullptr, copy.size()}}));
  EXPECT_CONTAINS(trial::error_of([&] { unreadable.read(0, copy.size(), copy.data()); }),
                  "Reading the memory of the child (process_vm_readv) failed");
  const PeerMemory peer(process, memory.segments());
  child.end();
  EXPECT(!peer.read(0, kBytes, copy.data()));
  EXPECT(!peer.write(0, kBytes, memory.segments()));
  munmap(page, 4096);
}

TEST(arrays_that_the_kernel_cannot_reach_are_found) {
  Memory memory;
  uint64_t word = 42;
  if (!PeerMemory::holds(getpid(), &word, 42)) return;  // forbidden here
  EXPECT(PeerMemory::is_reachable(memory.segments()));
  void* const page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  std::vector<Segment> segments(kArrays, Segment{memory.in.data(), memory.out.data(), kBytes});
  segments.push_back({memory.in.data(), static_cast<uint8_t*>(page), 1});
  EXPECT(!PeerMemory::is_reachable(SegmentList(segments)));
  munmap(page, 4096);
}
