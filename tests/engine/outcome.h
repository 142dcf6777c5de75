// The outcomes of requests.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "reducer/registry.h"

using easyddl::Done;

// Collects the errors of requests, and waits for a number of them.
class Outcome {
 public:
  Done done() {
    return [this](const std::string& error) {
      const std::lock_guard<std::mutex> lock(mutex_);
      errors_.push_back(error);
      arrived_.notify_all();
    };
  }

  std::vector<std::string> wait(size_t count) {
    std::unique_lock<std::mutex> lock(mutex_);
    arrived_.wait(lock, [&] { return errors_.size() >= count; });
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::string> errors_;
};
