// One call of a collective, for the files that implement the communicator's collectives.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <mutex>
#include <string>

#include "collectives/communicator.h"

namespace easyddl {

// Holds the communicator's lock, counts the collective, and tells all ranks if it has ended before
// all have come to the same point.
class Communicator::Call {
 public:
  // Throws an Error in a signal handler, and if no collective can follow on the communicator.
  Call(Communicator& communicator, const Fingerprint& fingerprint, const char* name, size_t bytes);
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // The collective has ended well.
  void done() { communicator_.broken_ = false; }
  // It has not.
  void fail(const std::string& reason);

 private:
  void trace() const;

  Communicator& communicator_;
  std::unique_lock<std::mutex> lock_;
  const char* name_;
  size_t bytes_;
  int64_t begin_ = 0;  // for the timeline
};

template <class Run>
void Communicator::collective(const char* name, size_t bytes, const Fingerprint& fingerprint,
                              Run run) {
  Call call(*this, fingerprint, name, bytes);
  try {
    run();
  } catch (const std::exception& error) {
    call.fail(error.what());
    throw;
  } catch (...) {  // a thread that is ended while it waits
    call.fail("its thread was ended.");
    throw;
  }
  call.done();
}

}  // namespace easyddl
