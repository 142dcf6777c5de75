#include "levels/shared_memory_level.h"

#include <new>
#include <vector>

#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Two cache lines, because processors fetch lines in pairs.
constexpr size_t kLine = 128;

size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

struct alignas(kLine) Notes {
  SharedMemoryLevel::Note phases[SharedMemoryLevel::kMostSlots];
};

constexpr size_t kPage = 4096;

}  // namespace

// The memory holds a Header, then the Notes of each member, then, from the next page on, the
// slots of each phase and member.
struct SharedMemoryLevel::Header {
  alignas(kLine) FutexCounter counter;
  alignas(kLine) Notes notes[1];
};

namespace {

size_t header_bytes(int size) {
  return round_up(kLine + static_cast<size_t>(size) * sizeof(Notes), kPage);
}

// Returns the memory that `member` writes: its slot of each phase. Member 0 also has the header,
// which all members write.
std::vector<SharedSegment::Range> ranges_of(int member, int size, size_t slot_bytes,
                                            uint32_t slots) {
  std::vector<SharedSegment::Range> ranges;
  if (member == 0) ranges.push_back({0, header_bytes(size)});
  for (uint32_t phase = 0; phase < slots; ++phase) {
    const size_t index = phase * static_cast<size_t>(size) + static_cast<size_t>(member);
    ranges.push_back({header_bytes(size) + index * slot_bytes, slot_bytes});
  }
  return ranges;
}

}  // namespace

SharedMemoryLevel::SharedMemoryLevel(const Topology& topology, size_t slot_bytes, uint32_t slots)
    : rank_(topology.local_rank),
      size_(topology.local_size),
      cores_are_shared_(topology.cores_are_shared),
      slot_bytes_(round_up(slot_bytes, kPage)),
      slots_(slots),
      segment_(topology.host.get(),
               header_bytes(size_) + slots * static_cast<size_t>(size_) * slot_bytes_,
               ranges_of(rank_, size_, slot_bytes_, slots)) {
  if (segment_.data() == nullptr) {
    throw Error("Not all ranks on the host of rank " + std::to_string(topology.rank) +
                " could open its shared memory.");
  }
  // A new memfd is zeroed, which is the initial state of a FutexCounter and of Notes.
  static_assert(sizeof(FutexCounter) <= kLine && std::atomic<uint32_t>::is_always_lock_free);
}

SharedMemoryLevel::Header* SharedMemoryLevel::header() {
  return static_cast<Header*>(segment_.data());
}

uint8_t* SharedMemoryLevel::slot(int member, uint32_t phase) {
  const size_t index = (phase % slots_) * static_cast<size_t>(size_) + static_cast<size_t>(member);
  return static_cast<uint8_t*>(segment_.data()) + header_bytes(size_) + index * slot_bytes_;
}

SharedMemoryLevel::Note& SharedMemoryLevel::note(int member, uint32_t phase) {
  return header()->notes[member].phases[phase % slots_];
}

void SharedMemoryLevel::end_phase() {
  header()->counter.advance(phase_ * static_cast<uint32_t>(size_));
  ++phase_;
}

bool SharedMemoryLevel::have_all_ended(uint32_t phase) {
  return header()->counter.reached(phase * static_cast<uint32_t>(size_));
}

void SharedMemoryLevel::wait(uint32_t phase, const Idle& idle) {
  const Span span("wait in the host");
  header()->counter.wait(phase * static_cast<uint32_t>(size_), cores_are_shared_, idle);
}

}  // namespace easyddl
