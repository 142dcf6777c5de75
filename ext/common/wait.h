// Waits for conditions that must be polled.
#pragma once

#include <chrono>
#include <functional>

namespace easyddl {

// A function that is called every kIdlePeriod while a rank waits. It may throw to end the wait.
using Idle = std::function<void()>;
constexpr std::chrono::milliseconds kIdlePeriod{50};

// Returns once `ready` returns true. Calls it with growing pauses. This is for conditions that wake
// no thread, such as MPI messages, which proceed only while MPI is polled.
void poll(const std::function<bool()>& ready, bool cores_are_shared, const Idle& idle);

}  // namespace easyddl
