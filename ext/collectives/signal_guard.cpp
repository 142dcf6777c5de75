#include "collectives/signal_guard.h"

#include "common/check.h"

namespace easyddl {
namespace {

thread_local const std::string* t_waiting_in = nullptr;

}  // namespace

SignalHandlerScope::SignalHandlerScope(const std::string& wait) : before_(t_waiting_in) {
  t_waiting_in = &wait;
}

SignalHandlerScope::~SignalHandlerScope() { t_waiting_in = before_; }

void refuse_in_handlers(const Fingerprint& fingerprint) {
  if (t_waiting_in == nullptr) return;
  throw Error(
      "A signal handler called " + fingerprint.text + " while its thread waits in " +
      *t_waiting_in +
      ". A handler must not call collectives. Set a flag in the handler, and check it at the end "
      "of the step on all ranks. To stop a fit, set model.stop_training = True. To save, "
      "use a callback, or wait until fit has returned.");
}

}  // namespace easyddl
