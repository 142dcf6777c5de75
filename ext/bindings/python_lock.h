// How threads come and go from Python: its global lock (GIL), and its end.
#pragma once

#include <pybind11/pybind11.h>

#include <condition_variable>
#include <mutex>

#include "bindings/python_return.h"

namespace easyddl {

// Gives up Python's lock while it lives. Used in place of pybind11's class of this kind: see
// python_return.h.
class WithoutPythonLock {
 public:
  WithoutPythonLock() : state_(PyEval_SaveThread()) {}
  ~WithoutPythonLock() { easyddl_return_to_python(state_); }
  WithoutPythonLock(const WithoutPythonLock&) = delete;
  WithoutPythonLock& operator=(const WithoutPythonLock&) = delete;

 private:
  PyThreadState* state_;
};

// The engine's calls of Python, from whatever thread. There are none once it is about to end.
class PythonVisits {
 public:
  // Runs `call` with Python's lock, unless it is too late.
  template <class Call>
  void make(Call call) {
    const Visit visit(*this);
    if (!visit.is_let_in()) return;
    const pybind11::gil_scoped_acquire lock;
    call();
  }

  // Lets nobody in any more, and waits for those who are. To be called without Python's lock.
  void close() {
    std::unique_lock<std::mutex> lock(mutex_);
    is_open_ = false;
    // A signal handler that runs in a visit of this very thread may end the process.
    left_.wait(lock, [this] { return visits_ == own_visits(); });
  }

 private:
  class Visit {
   public:
    explicit Visit(PythonVisits& all) : all_(all) {
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      is_let_in_ = all_.is_open_;
      if (!is_let_in_) return;
      ++all_.visits_;
      ++own_visits();
    }
    ~Visit() {
      if (!is_let_in_) return;
      const std::lock_guard<std::mutex> lock(all_.mutex_);
      --all_.visits_;
      --own_visits();
      all_.left_.notify_all();
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;
    bool is_let_in() const { return is_let_in_; }

   private:
    PythonVisits& all_;
    bool is_let_in_ = false;
  };

  static int& own_visits() {
    static thread_local int count = 0;
    return count;
  }

  std::mutex mutex_;
  std::condition_variable left_;
  bool is_open_ = true;
  int visits_ = 0;
};

}  // namespace easyddl
