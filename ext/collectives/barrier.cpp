#include "collectives/barrier.h"

#include "collectives/pipeline.h"

namespace easyddl {

void barrier(Communicator& communicator, const Fingerprint& fingerprint) {
  communicator.run({"barrier", 0, fingerprint}, rendezvous);
}

void uninterruptible_barrier(Communicator& communicator, const Fingerprint& fingerprint) {
  CollectiveCall call{"meet", 0, fingerprint};
  call.is_interruptible = false;
  communicator.run(call, rendezvous);
}

}  // namespace easyddl
