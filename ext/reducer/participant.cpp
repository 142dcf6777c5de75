#include "reducer/participant.h"

#include <utility>

#include "common/check.h"

namespace easyddl {

Participant::Participant(std::string what)
    : what_(std::move(what)), state_(own_mutex_), registration_(*this) {}

Participant::Participant(std::string what, std::mutex& shared_mutex)
    : what_(std::move(what)), state_(shared_mutex), registration_(*this) {}

void Participant::join() {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.join.join();
  wake();
}

bool Participant::wait_for_all(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(state_.mutex);
  state_.all_joined.wait_for(
      lock, time, [this] { return !state_.join.is_joining() || !state_.failure.empty(); });
  if (!state_.failure.empty()) throw Error(state_.failure);
  return !state_.join.is_joining();
}

void Participant::ask_to_stop(bool stop) {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.join.ask_to_stop(stop);
}

std::optional<std::chrono::nanoseconds> Participant::blocked_time() {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  if (is_on_gpu()) return std::nullopt;
  return state_.blocked_time;
}

JoinSummary Participant::join_summary() {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return state_.join.summary();
}

void Participant::reset_join_state() {
  const std::lock_guard<std::mutex> lock(state_.mutex);
  state_.join.reset();
}

}  // namespace easyddl
