// Processes the data of a collective in stages, chunk by chunk, and compares the ranks'
// fingerprints meanwhile.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "collectives/collective_context.h"

namespace easyddl {

// The processing of a chunk in one phase of the shared memory. `phase` is the phase in which the
// chunk was written.
struct Stage {
  const char* name;  // in the timeline
  std::function<void(const ByteRange& chunk, uint32_t phase)> run;
};

// Processes `bytes` of data in chunks. In phase k chunk k is in stage 0, chunk k-1 in stage 1, and
// so on, so that each phase has at most one wait for the other ranks. Throws a CollectiveError if
// the ranks' fingerprints differ.
void pipeline(CollectiveContext& context, size_t bytes, const std::vector<Stage>& stages);

// Returns when all ranks have entered the collective, with equal fingerprints.
void rendezvous(CollectiveContext& context);

// Throws a CollectiveError, the same on all ranks, if any member of this host has published a
// fingerprint in `phase` that differs from this rank's. For collectives on one host.
void require_agreement(CollectiveContext& context, uint32_t phase);

// Returns whether all members of this host have published this rank's fingerprint in `phase`.
bool members_agree(CollectiveContext& context, uint32_t phase);

// Throws the CollectiveError that lists the call of each rank. All ranks call it together.
[[noreturn]] void throw_disagreement(CollectiveContext& context);

}  // namespace easyddl
