// A handle on submitted arrays, by which a thread waits for their results.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "reducer/registry.h"

namespace easyddl {

// The waiting thread and the reducer share the outcome. The handle owns no buffers, and need not be
// waited for.
class WorkHandle {
 public:
  // Returns the function to submit with the arrays, which the reducer calls with the outcome.
  Done done() const;

  // Waits for the outcome, but at most for `time`. Returns false if it is not known by then. Throws
  // an Error if the arrays do not hold the result.
  bool wait_for(std::chrono::milliseconds time) const;

 private:
  struct Outcome {
    std::mutex mutex;
    std::condition_variable is_known;
    std::optional<std::string> error;  // empty if the arrays hold the result
  };

  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

}  // namespace easyddl
