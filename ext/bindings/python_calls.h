// The engine's calls of Python code, and the check for signals.
#pragma once

#include "bindings/python_lock.h"

namespace easyddl {

// Never destroyed, because threads of the engine outlive the module.
PythonCalls& python_calls();

// Runs Python's signal handlers if this is its main thread, so that Ctrl-C can end a wait.
void check_signals();

// Calls `wait`, which waits for a limited time, until it returns true. Releases Python's lock
// during the calls, and checks for signals between them.
template <class Wait>
void wait_with_signals(Wait wait) {
  for (;;) {
    {
      const WithoutPythonLock nogil;
      if (wait()) return;
    }
    check_signals();
  }
}

}  // namespace easyddl
