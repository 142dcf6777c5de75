// The level within a host: shared memory, and the phases in which the host's ranks use it.
#pragma once

#include <cstdint>

#include "common/futex_counter.h"
#include "common/wait.h"
#include "runtime/shared_segment.h"
#include "runtime/topology.h"

namespace easyddl {

// Collectives on the shared memory proceed in phases. In phase t each member
//   1. writes its own slot of phase t,
//   2. waits until all members have ended phase t - 1,
//   3. reads the data of earlier phases,
//   4. ends phase t.
// So no member is ever more than one phase ahead of another.
//
// Each member has S slots, used in rotation. The slot of phase t is written again in phase t + S,
// before step 2 of that phase. By then all members have ended phase t + S - 2. So the slot of phase
// t may be read and written until the end of phase t + S - 2.
class SharedMemoryLevel {
 public:
  static constexpr uint32_t kMostSlots = 8;

  // The data that a member publishes in a phase beside its slot.
  struct Note {
    uint64_t fingerprint;   // of the collective that begins in this phase
    uint32_t verdict;       // whether the fingerprints of all hosts agree; written by leaders
    uint32_t is_protected;  // whether the kernel no longer lets others access the member's memory
  };

  // Collective over topology.host. `slots` is S above.
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
