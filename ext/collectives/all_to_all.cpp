#include "collectives/all_to_all.h"

#include "collectives/array_exchange.h"
#include "collectives/pipeline.h"

namespace easyddl {

void all_to_all(Communicator& communicator, const void* in, const std::vector<int64_t>& sends,
                size_t unit_bytes, const Fingerprint& fingerprint, const Allocate& allocate) {
  communicator.run({"all-to-all", 0, fingerprint}, [&](CollectiveContext& context) {
    rendezvous(context);
    std::vector<int64_t> receives(sends.size()), send_bytes = sends;
    const std::vector<int64_t> one_each(sends.size(), sizeof(int64_t));
    exchange_arrays(context, sends.data(), receives.data(), one_each, one_each);
    void* const out = allocate_together(context, receives, allocate);
    for (int64_t& each : send_bytes) each *= static_cast<int64_t>(unit_bytes);
    for (int64_t& each : receives) each *= static_cast<int64_t>(unit_bytes);
    exchange_arrays(context, in, out, send_bytes, receives);
  });
}

}  // namespace easyddl
