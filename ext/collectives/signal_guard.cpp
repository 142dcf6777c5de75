#include "collectives/signal_guard.h"

#include "common/check.h"

namespace easyddl {
namespace {

thread_local const std::string* t_interrupted = nullptr;

}  // namespace

Interruption::Interruption(const std::string& wait) : before_(t_interrupted) {
  t_interrupted = &wait;
}

Interruption::~Interruption() { t_interrupted = before_; }

void refuse_in_handlers(const Fingerprint& fingerprint) {
  if (t_interrupted == nullptr) return;
  throw Error("A signal handler called " + fingerprint.text + " while its thread waits in " +
              *t_interrupted +
              ". A handler must not call collectives: set a flag in it, and act on that at the end "
              "of the step, where all ranks come. To stop a fit, set model.stop_training = True; "
              "save when it has returned, or in a callback.");
}

}  // namespace easyddl
