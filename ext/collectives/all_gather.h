// Gathers the data of all ranks on all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "collectives/allocation.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Returns the values of all ranks, in the order of the ranks. Only `value` may differ between
// ranks.
std::vector<int64_t> gather_values(Communicator& communicator, int64_t value,
                                   const Fingerprint& fingerprint);

// Writes the units of all ranks, in the order of the ranks, to the memory that `allocate` returns.
// This rank contributes `count` units.
void all_gather(Communicator& communicator, const void* in, int64_t count, size_t unit_bytes,
                const Fingerprint& fingerprint, const Allocate& allocate);

// Writes the `bytes` of each rank to `out`, in the order of the ranks.
void all_gather(Communicator& communicator, const void* in, void* out, size_t bytes,
                const Fingerprint& fingerprint);

// Returns the structs of all ranks, in the order of the ranks.
template <class T>
std::vector<T> all_gather(Communicator& communicator, const T& mine,
                          const Fingerprint& fingerprint) {
  std::vector<T> all(static_cast<size_t>(communicator.size()));
  all_gather(communicator, &mine, all.data(), sizeof mine, fingerprint);
  return all;
}

}  // namespace easyddl
