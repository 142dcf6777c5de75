// What this process does and when, written to a file for the timeline.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace easyddl {

// Lines of JSON, one a span, in a file of this rank's own. There is one trace a process or none,
// so that no span names it. It takes little memory: what was added goes
// to the file soon, and at the latest when its buffer is full.
class Trace {
 public:
  // Named numbers that a span carries.
  using Values = std::initializer_list<std::pair<const char*, int64_t>>;

  // Begins the trace of this process, in a file that is open for writing.
  static void start(int file);

  // The trace of this process, or null while none is written, which is all that it then costs.
  static Trace* on() { return process_.load(std::memory_order_acquire); }

  // The time that spans are in: nanoseconds of the steady clock, Python's time.monotonic_ns().
  static int64_t now();

  // Writes one span of this thread. `name` and the names of `values` go into the file as they
  // are. `what`, which may be null, is cut where it is long.
  void add(const char* name, int64_t begin, int64_t end, Values values = {},
           const std::string* what = nullptr);

  // How this thread's spans are headed in the timeline.
  void name_thread(const std::string& name);

  // What this process's clock said at `at`, plus `offset`, was the root's time, give or take
  // `error`.
  void add_clock(int64_t at, int64_t offset, int64_t error);

  // Nothing comes after this: without it the file is one that was cut short.
  void end();

  // Hands what was added to the system, which keeps it when the process is killed.
  void flush();

 private:
  class Line;

  explicit Trace(int file);
  int64_t thread_number();
  void append(const Line& line);
  void write_out(const char* data, size_t bytes);

  static std::atomic<Trace*> process_;

  const int file_;
  const int process_id_;  // a forked child writes nothing
  bool failed_ = false;
  std::mutex file_mutex_;  // taken before the other
  std::mutex mutex_;
  std::unique_ptr<char[]> lines_, spare_;  // one is filled while the other is written
  size_t used_ = 0;
  int64_t threads_ = 0;
};

// The time from here to the end of the scope.
class Span {
 public:
  explicit Span(const char* name, size_t bytes = 0) : trace_(Trace::on()) {
    if (trace_ == nullptr) return;
    name_ = name;
    bytes_ = bytes;
    begin_ = Trace::now();
  }
  ~Span() {
    if (trace_ != nullptr) end();
  }
  Span(const Span&) = delete;
  Span& operator=(const Span&) = delete;

 private:
  void end();

  Trace* const trace_;
  const char* name_;
  size_t bytes_;
  int64_t begin_;
};

// How long so many spans take, in seconds: for a benchmark.
double time_spans(int64_t count);

}  // namespace easyddl
