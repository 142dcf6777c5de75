// The level inside a host: shared memory that its ranks write on in phases.
#pragma once

#include <cstdint>

#include "common/futex_counter.h"
#include "common/wait.h"
#include "runtime/shared_segment.h"
#include "runtime/topology.h"

namespace easyddl {

// Time on the shared memory is counted in phases. In phase t each member may write in its own slot
// of that phase, then waits until all have ended phase t - 1, may read what was written in the
// phases before, and ends its phase. So no member is ever more than one phase ahead of another.
//
// There are S slots a member, used in rotation. Slot t is written again in turn t + S, before
// that phase's wait; by then all have ended phase t + S - 2. What was written in turn t may
// therefore be read and written, by whom it concerns, until the end of phase t + S - 2.
class SharedMemoryLevel {
 public:
  static constexpr uint32_t kMostSlots = 8;

  // What a member says of itself in a phase.
  struct Note {
    uint64_t fingerprint;  // of the collective that begins in this phase
    uint32_t verdict;      // whether all hosts agree; told by leaders
  };

  // Collective over layout.host. `slots` is what S is above.
  SharedMemoryLevel(const Topology& topology, size_t slot_bytes, uint32_t slots);

  int rank() const { return rank_; }
  int size() const { return size_; }
  size_t slot_bytes() const { return slot_bytes_; }
  uint32_t phase() const { return phase_; }

  uint8_t* slot(int member, uint32_t phase);
  Note& note(int member, uint32_t phase);

  void end_phase();
  // Waits until all members have ended `phase`.
  void wait(uint32_t phase, const Idle& idle);
  bool have_all_ended(uint32_t phase);

 private:
  struct Header;
  Header* header();

  int rank_, size_;
  bool cores_are_shared_;
  size_t slot_bytes_;
  uint32_t slots_;
  uint32_t phase_ = 1;
  SharedSegment segment_;
};

}  // namespace easyddl
