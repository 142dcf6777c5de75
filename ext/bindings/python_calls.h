// The engine's calls of Python: one place for all of them, and the look for signals.
#pragma once

#include "bindings/python_lock.h"

namespace easyddl {

// Never destroyed: threads of the engine outlive the module.
PythonVisits& visits();

// Lets Ctrl-C end a wait that was entered from Python's main thread.
void check_signals();

// Calls `wait` until it returns true. It waits for some time without Python's lock; in between,
// this looks for signals.
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
