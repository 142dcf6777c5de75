// By which a thread waits until the arrays that it has submitted are reduced.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "reducer/registry.h"

namespace easyddl {

// Shared by the waiting thread and the reducer; owns no buffers. Nobody needs to wait for it.
class WorkHandle {
 public:
  // The function to submit with the arrays: the reducer calls it with the outcome.
  Done done() const;

  // Waits for some time. False if it is not done by then. Throws an Error that says why the
  // arrays do not hold the result.
  bool wait_for(std::chrono::milliseconds time) const;

 private:
  struct Outcome {
    std::mutex mutex;
    std::condition_variable came;
    std::optional<std::string> error;  // empty where the arrays hold the result
  };

  std::shared_ptr<Outcome> outcome_ = std::make_shared<Outcome>();
};

}  // namespace easyddl
