// Waiting for something that has to be polled.
#pragma once

#include <chrono>
#include <functional>

namespace easyddl {

// Called every kIdlePeriod while a rank waits; it may throw to end the wait.
using Idle = std::function<void()>;
constexpr std::chrono::milliseconds kIdlePeriod{50};

// Returns once `ready` is true. Calls it with growing pauses, for what nobody is woken by: MPI
// makes progress only while it is polled.
void poll(const std::function<bool()>& ready, bool cores_are_shared, const Idle& idle);

}  // namespace easyddl
