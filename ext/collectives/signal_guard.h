// Keeps signal handlers from calling collectives.
#pragma once

#include <string>

#include "collectives/fingerprint.h"

namespace easyddl {

// Marks that this thread may run Python's signal handlers, in the middle of a collective, until the
// end of the scope. `wait` describes the collective.
class SignalHandlerScope {
 public:
  explicit SignalHandlerScope(const std::string& wait);
  ~SignalHandlerScope();
  SignalHandlerScope(const SignalHandlerScope&) = delete;
  SignalHandlerScope& operator=(const SignalHandlerScope&) = delete;

 private:
  const std::string* before_;
};

// Throws an Error if this thread is in a SignalHandlerScope. A handler must not call collectives:
// the other ranks do not know when this rank receives a signal, and the interrupted collective
// still holds its communicator.
void refuse_in_handlers(const Fingerprint& fingerprint);

}  // namespace easyddl
