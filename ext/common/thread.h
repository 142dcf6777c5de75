// The engine's own threads.
#pragma once

#include <functional>
#include <string>
#include <thread>

namespace easyddl {

// Starts a thread of the engine. Signals stay with the other threads: Python acts on them in the
// main one. `name` is what debuggers and `ps -L` show, of up to 15 characters; `what` says what the
// thread is for, in the Error that is thrown if the system refuses it.
std::thread start_thread(const char* name, const std::string& what, std::function<void()> run);

}  // namespace easyddl
