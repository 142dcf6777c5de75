#include "collectives/reduce_scatter.h"

#include <cstdint>
#include <vector>

#include "arrays/arithmetic.h"
#include "collectives/allocation.h"
#include "collectives/array_exchange.h"
#include "collectives/pipeline.h"

namespace easyddl {

// Each rank receives its part of every rank's data directly from that rank, and reduces the parts
// in the order of the ranks.
void reduce_scatter(Communicator& communicator, const void* in, void* out, size_t count,
                    DType dtype, Op op, const Fingerprint& fingerprint) {
  const size_t part = count * size_of(dtype), size = static_cast<size_t>(communicator.size());
  const std::vector<int64_t> parts(size, static_cast<int64_t>(part));
  std::vector<uint8_t> inbox;
  const CollectiveCall call{"reduce-scatter", part * size, fingerprint};
  communicator.run(call, [&](CollectiveContext& context) {
    rendezvous(context);
    allocate_together(context, parts, [&](const std::vector<int64_t>&) {
      inbox.resize(part * size);
      return inbox.data();
    });
    exchange_arrays(context, in, inbox.data(), parts, parts);
    std::vector<const void*> sources;
    for (size_t rank = 0; rank < size; ++rank) sources.push_back(inbox.data() + rank * part);
    accumulate_and_finish(out, sources.data(), size, count, dtype, op, communicator.size());
  });
}

}  // namespace easyddl
