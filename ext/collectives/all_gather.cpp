#include "collectives/all_gather.h"

#include "collectives/array_exchange.h"
#include "collectives/pipeline.h"
#include "collectives/value_exchange.h"

namespace easyddl {

std::vector<int64_t> gather_values(Communicator& communicator, int64_t value,
                                   const Fingerprint& fingerprint) {
  std::vector<int64_t> all;
  const size_t bytes = sizeof value * static_cast<size_t>(communicator.size());
  communicator.run({"gather values", bytes, fingerprint}, [&](CollectiveContext& context) {
    rendezvous(context);
    all = values_of_ranks(context, value);
  });
  return all;
}

void all_gather(Communicator& communicator, const void* in, int64_t count, size_t unit_bytes,
                const Fingerprint& fingerprint, const Allocate& allocate) {
  communicator.run({"all-gather", 0, fingerprint}, [&](CollectiveContext& context) {
    rendezvous(context);
    std::vector<int64_t> counts = values_of_ranks(context, count);
    void* const out = allocate_together(context, counts, allocate);
    for (int64_t& each : counts) each *= static_cast<int64_t>(unit_bytes);
    gather_arrays(context, in, out, counts);
  });
}

void all_gather(Communicator& communicator, const void* in, void* out, size_t bytes,
                const Fingerprint& fingerprint) {
  const std::vector<int64_t> each(static_cast<size_t>(communicator.size()),
                                  static_cast<int64_t>(bytes));
  communicator.run({"all-gather", 0, fingerprint}, [&](CollectiveContext& context) {
    rendezvous(context);
    gather_arrays(context, in, out, each);
  });
}

}  // namespace easyddl
