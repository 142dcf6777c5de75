#include "profiling/trace.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <thread>

#include "common/console.h"
#include "common/thread.h"

namespace easyddl {
namespace {

// The size of each of the two buffers.
constexpr size_t kBufferBytes = 64 << 10;
// The period after which the buffer is written. A killed rank loses the spans of at most this time.
constexpr std::chrono::milliseconds kFlushPeriod{200};
// The longest text of a span. A fingerprint may list hundreds of gradients.
constexpr size_t kTextBytes = 240;

thread_local int64_t t_thread = 0;  // the number of this thread in the trace; 0 for none yet

}  // namespace

std::atomic<Trace*> Trace::process_{nullptr};

// One line of JSON. The buffer is long enough for all lines of this file.
class Trace::Line {
 public:
  Line& raw(const char* text) {
    const size_t length = std::min(std::strlen(text), room());
    std::memcpy(text_ + used_, text, length);
    used_ += length;
    return *this;
  }

  Line& number(int64_t value) {
    used_ =
        static_cast<size_t>(std::to_chars(text_ + used_, text_ + sizeof text_, value).ptr - text_);
    return *this;
  }

  // Adds a string in quotes.
  Line& quoted(const std::string& text) {
    raw("\"");
    size_t length = std::min(text.size(), kTextBytes);
    // Do not cut a UTF-8 character.
    while (length < text.size() && length > 0 && (text[length] & 0xc0) == 0x80) --length;
    for (size_t i = 0; i < length; ++i) character(text[i]);
    return raw(length < text.size() ? "...\"" : "\"");
  }

  const char* data() const { return text_; }
  size_t size() const { return used_; }

 private:
  void character(char c) {
    static constexpr char kDigits[] = "0123456789abcdef";
    if (static_cast<unsigned char>(c) < 0x20) {
      const char escaped[] = {'\\', 'u', '0', '0', kDigits[c >> 4], kDigits[c & 15], '\0'};
      raw(escaped);
    } else {
      const char plain[] = {c, '\0'};
      raw(c == '"' ? "\\\"" : c == '\\' ? "\\\\" : plain);
    }
  }
  size_t room() const { return sizeof text_ - used_; }

  char text_[6 * kTextBytes + 1024];
  size_t used_ = 0;
};

Trace::Trace(int file)
    : file_(file),
      process_id_(getpid()),
      lines_(new char[kBufferBytes]),
      spare_(new char[kBufferBytes]) {}

void Trace::start(int file) {
  // Never destroyed, because threads may add to it while the process ends.
  auto* const trace = new Trace(file);
  process_.store(trace, std::memory_order_release);
  start_thread("easyddl trace", "that writes the timeline", [trace] {
    for (;;) {
      std::this_thread::sleep_for(kFlushPeriod);
      trace->flush();
    }
  }).detach();
}

int64_t Trace::now() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Trace::add(const char* name, int64_t begin, int64_t end, Values values,
                const std::string* what) {
  Line line;
  line.raw("[\"").raw(name).raw("\",").number(thread_number());
  line.raw(",").number(begin).raw(",").number(end - begin);
  line.raw(",{");
  const char* separator = "";
  for (const auto& [key, value] : values) {
    line.raw(separator).raw("\"").raw(key).raw("\":").number(value);
    separator = ",";
  }
  if (what != nullptr) line.raw(separator).raw("\"what\":").quoted(*what);
  append(line.raw("}]\n"));
}

int64_t Trace::thread_number() {
  if (t_thread == 0) name_thread(getpid() == syscall(SYS_gettid) ? "main thread" : "thread");
  return t_thread;
}

void Trace::name_thread(const std::string& name) {
  if (t_thread == 0) {
    const std::lock_guard<std::mutex> lock(mutex_);
    t_thread = ++threads_;
  }
  Line line;
  append(line.raw("{\"lane\":").number(t_thread).raw(",\"name\":").quoted(name).raw("}\n"));
}

void Trace::add_clock(int64_t at, int64_t offset, int64_t error) {
  Line line;
  line.raw("{\"clock\":").number(at).raw(",\"offset\":").number(offset);
  append(line.raw(",\"error\":").number(error).raw("}\n"));
}

void Trace::end() {
  Line line;
  append(line.raw("{\"end\":").number(now()).raw("}\n"));
  flush();
}

void Trace::append(const Line& line) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (line.size() > kBufferBytes - used_) {
    lock.unlock();
    flush();
    lock.lock();
  }
  std::memcpy(lines_.get() + used_, line.data(), line.size());
  used_ += line.size();
}

void Trace::flush() {
  if (getpid() != process_id_) return;
  const std::lock_guard<std::mutex> file_lock(file_mutex_);
  size_t bytes = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(lines_, spare_);
    std::swap(used_, bytes);
  }
  write_out(spare_.get(), bytes);
}

void Trace::write_out(const char* data, size_t bytes) {
  while (bytes > 0 && !failed_) {
    const ssize_t written = write(file_, data, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      // A full disk must not end the training.
      failed_ = true;
      write_line(
          std::string(
              "easyddl: warning: the timeline is incomplete, because writing to it failed: ") +
          std::strerror(errno));
      return;
    }
    data += written;
    bytes -= static_cast<size_t>(written);
  }
}

void Span::end() {
  const int64_t now = Trace::now();
  if (bytes_ == 0) {
    trace_->add(name_, begin_, now);
  } else {
    trace_->add(name_, begin_, now, {{"bytes", static_cast<int64_t>(bytes_)}});
  }
}

double time_spans(int64_t count) {
  const int64_t begin = Trace::now();
  for (int64_t i = 0; i < count; ++i) const Span span("probe", 1);
  return static_cast<double>(Trace::now() - begin) * 1e-9;
}

}  // namespace easyddl
