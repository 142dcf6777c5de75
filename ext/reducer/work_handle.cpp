#include "reducer/work_handle.h"

#include "common/check.h"

namespace easyddl {

Done WorkHandle::done() const {
  return [outcome = outcome_](const std::string& error) {
    const std::lock_guard<std::mutex> lock(outcome->mutex);
    outcome->error = error;
    outcome->is_known.notify_all();
  };
}

bool WorkHandle::wait_for(std::chrono::milliseconds time) const {
  std::unique_lock<std::mutex> lock(outcome_->mutex);
  if (!outcome_->is_known.wait_for(lock, time, [this] { return outcome_->error.has_value(); })) {
    return false;
  }
  if (!outcome_->error->empty()) throw Error(*outcome_->error);
  return true;
}

}  // namespace easyddl
