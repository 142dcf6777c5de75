// Python's global lock (GIL), and calls of Python by the engine's threads.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <mutex>

#include "bindings/python_return.h"

namespace easyddl {

// Releases Python's lock until the end of the scope. Used instead of pybind11's gil_scoped_release:
// see python_return.h.
class WithoutPythonLock {
 public:
  WithoutPythonLock() : state_(PyEval_SaveThread()) {}
  ~WithoutPythonLock() { easyddl_return_to_python(state_); }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_;
};

// Runs the engine's calls of Python code, from any thread. Refuses them once the interpreter is
// about to end.
class PythonCalls {
 public:
  // Runs `call` with Python's lock. Does nothing after `close`.
  template <class Call>
  void run(Call call) {
    const ActiveCall active(*this);
    if (!active.is_allowed()) return;
    const pybind11::gil_scoped_acquire lock;
    call();
  }

  // Refuses further calls, and waits for those in progress. Must be called without Python's lock.
  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_open_ = false;
    // Calls of this thread do not count, because a signal handler that runs in one may end the
    // process.
    ended_.wait(lock, [this] { return active_ == own_calls(); });
  }

 private:
  class ActiveCall {
   public:
    explicit ActiveCall(PythonCalls& all) : all_(all) {
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      is_allowed_ = all_.is_open_;
      if (!is_allowed_) return;
      ++all_.active_;
      ++own_calls();
    }
    ~ActiveCall() {
      if (!is_allowed_) return;
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      --all_.active_;
      --own_calls();
      all_.ended_.notify_all();
    }
    ActiveCall(const ActiveCall&) = delete;
    ActiveCall& operator=(const ActiveCall&) = delete;
    bool is_allowed() const { return is_allowed_; }

   private:
    PythonCalls& all_;
    bool is_allowed_ = false;
  };

  static int& own_calls() {
    static thread_local int count = 0;
    return count;
  }

  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_open_ = true;
  int active_ = 0;
};

}  // namespace easyddl
