#include "collectives/allocation.h"

#include <new>
#include <string>

#include "collectives/pipeline.h"
#include "collectives/signal_guard.h"
#include "common/check.h"

namespace easyddl {

void* allocate_together(CollectiveContext& context, const std::vector<int64_t>& counts,
                        const Allocate& allocate) {
  const std::string& text = context.fingerprint().text;
  std::string failure;
  void* memory = nullptr;
  try {
    const SignalHandlerScope scope(text);  // `allocate` may run Python's signal handlers
    memory = allocate(counts);
  } catch (const Error& error) {
    failure = error.what();
  } catch (const std::bad_alloc&) {
    failure = "out of memory";
  }
  const Fingerprint second_half(
      text + (failure.empty() ? ", its second half" : ", which failed there: " + failure));
  const CollectiveContext::FingerprintScope scope(context, second_half);
  context.check_protection();
  const uint32_t phase = context.shared_memory().phase();
  rendezvous(context);
  context.compare_protection(phase);
  // The text is the same on all ranks: if it were not, the fingerprints would have differed.
  if (!failure.empty()) throw CollectiveError(failure);
  return memory;
}

}  // namespace easyddl
