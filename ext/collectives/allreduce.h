// Reduces arrays over all ranks.
//
// The hierarchy follows BlueConnect (Cho et al., 2019): reduce-scatter within a host, allreduce of
// each shard across hosts, all-gather within a host. The data is processed in chunks, in stages
// that take one phase of the shared memory each: copy the chunk in, reduce this rank's shard of it,
// copy the reduced chunk out. While chunk k is copied in, chunk k-1 is reduced and chunk k-2 is
// copied out, so that a phase has only one wait for the other ranks. With several hosts the
// reduction takes more stages, so that the network works on several chunks while the cores work on
// others.
#pragma once

#include <optional>

#include "arrays/dtype.h"
#include "arrays/segment_list.h"
#include "collectives/communicator.h"
#include "collectives/fingerprint.h"

namespace easyddl {

// Writes the reduction of all ranks' inputs, element by element, to the outputs of each rank. The
// order of a sum depends on the topology and on the number of bytes, never on timing. With `wire`,
// float32 and what is summed in float32 is sent to other hosts in that type: see
// add_reduce_scatter. The fingerprint must differ then.
void allreduce(Communicator& communicator, const SegmentList& data, DType dtype, Op op,
               const Fingerprint& fingerprint, std::optional<DType> wire = std::nullopt);

}  // namespace easyddl
