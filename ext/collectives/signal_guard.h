// Keeps signal handlers from calling collectives.
#pragma once

#include <string>

#include "collectives/fingerprint.h"

namespace easyddl {

// While it lives, this thread looks after other things than its collective, such as Python's signal
// handlers. `wait` says what it waits in.
class Interruption {
 public:
  explicit Interruption(const std::string& wait);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

 private:
  const std::string* before_;
};

// Throws an Error if this thread is in an Interruption. The other ranks cannot know at which moment
// this rank's signal came; and the collective that was interrupted holds its communicator.
void refuse_in_handlers(const Fingerprint& fingerprint);

}  // namespace easyddl
