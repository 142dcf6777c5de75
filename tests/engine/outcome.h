// How requests have ended.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "reducer/registry.h"

using easyddl::Done;

// Waits until so many requests are done, and keeps what they said.
class Outcome {
 public:
  Done done() {
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      errors_.push_back(error);
      came_.notify_all();
    };
  }

  std::vector<std::string> wait(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    came_.wait(lock, [&] { return errors_.size() >= count; });
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable came_;
  std::vector<std::string> errors_;
};
