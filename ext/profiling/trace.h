// Writes the spans of this process to a file for the timeline.
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

// Writes lines of JSON, one for each span, to a file of this rank. A process has at most one trace,
// so that spans need no reference to it. It needs little memory, because a thread writes the buffer
// to the file periodically, and a full buffer is written at once.
class Trace {
 public:
  // Named numbers of a span.
  using Values = std::initializer_list<std::pair<const char*, int64_t>>;

  // Starts the trace of this process in a file that is open for writing.
  static void start(int file);

  // Returns the trace of this process, or null if none is written. Without a trace, this check is
  // the only cost.
  static Trace* on() { return process_.load(std::memory_order_acquire); }

  // Returns the time of the trace's clock: nanoseconds of the steady clock, as Python's
  // time.monotonic_ns().
  static int64_t now();

  // Writes one span of this thread. `name` and the names of `values` are written unescaped. `what`,
  // which may be null, is shortened if it is long.
  void add(const char* name, int64_t begin, int64_t end, Values values = {},
           const std::string* what = nullptr);

  // Sets the name of this thread in the timeline.
  void name_thread(const std::string& name);

  // Writes a measurement of this process's clock: see ClockOffset.
  void add_clock(int64_t at, int64_t offset, int64_t error);

  // Writes the last line. A file without it is incomplete.
  void end();

  // Writes the buffer to the file, so that it is kept if the process is killed.
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
  std::mutex file_mutex_;  // locked before `mutex_`
  std::mutex mutex_;
  std::unique_ptr<char[]> lines_, spare_;  // one is filled while the other is written
  size_t used_ = 0;
  int64_t threads_ = 0;
};

// A span from the constructor to the end of the scope.
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

// Returns the seconds that `count` spans take, for a benchmark.
double time_spans(int64_t count);

}  // namespace easyddl
