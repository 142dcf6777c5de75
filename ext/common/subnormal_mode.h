// Sets whether a thread computes with subnormal floats, or flushes them to zero.
#pragma once

#include <cstdint>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace easyddl {

// Sets the mode of this thread until the end of the scope.
//
// The threads of TensorFlow's and XLA's pools flush: they treat subnormal operands as zero, and
// replace subnormal results by zero. Python's threads and the engine's threads keep subnormal
// floats. Which thread runs a computation can depend on timing, so code that must give the same
// bits on all ranks sets the mode.
class SubnormalMode {
 public:
  enum Mode { keep, flush };

  explicit SubnormalMode(Mode mode) : before_(read()) {
    const Control wanted = mode == flush ? before_ | kFlush : before_ & ~kFlush;
    has_changed_ = wanted != before_;
    if (has_changed_) write(wanted);
  }
  ~SubnormalMode() {
    if (has_changed_) write(before_);
  }
  SubnormalMode(const SubnormalMode&) = delete;
  SubnormalMode& operator=(const SubnormalMode&) = delete;

 private:
#if defined(__SSE__)
  using Control = unsigned int;
  static constexpr Control kFlush = 0x8040;  // MXCSR: FTZ and DAZ
  static Control read() { return _mm_getcsr(); }
  static void write(Control control) { _mm_setcsr(control); }
#elif defined(__aarch64__)
  using Control = uint64_t;
  static constexpr Control kFlush = 1 << 24;  // FPCR: FZ
  static Control read() {
    Control control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    return control;
  }
  static void write(Control control) { asm volatile("msr fpcr, %0" : : "r"(control) : "memory"); }
#else
  using Control = unsigned int;
  static constexpr Control kFlush = 0;
  static Control read() { return 0; }
  static void write(Control) {}
#endif

  Control before_;
  bool has_changed_;
};

}  // namespace easyddl
