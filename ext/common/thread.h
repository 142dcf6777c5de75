// The engine's threads.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace easyddl {

// Starts a thread of the engine. It blocks all signals, because Python handles them on its main
// thread. `name` is for debuggers and `ps -L`, and has up to 15 characters. `what` describes the
// thread in the Error that is thrown if the system refuses to start it.
std::thread start_thread(const char* name, const std::string& what, std::function<void()> run);

}  // namespace easyddl
