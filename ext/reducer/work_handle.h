// What a thread that has handed something in waits with, until it is done.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "reducer/registry.h"

namespace easyddl {

// It lives for as long as whoever waits or the reducer knows it, and holds nothing else: what
// it stands for need not be waited for.
class WorkHandle {
 public:
  // To be handed in with the arrays: it tells the work handle how that ended.
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
