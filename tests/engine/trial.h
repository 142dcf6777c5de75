// Tests without a framework. A test is a function that throws if it fails.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

#include "common/check.h"

namespace trial {

class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Adds a test to the list. All ranks run the same program, so all have the same list.
bool add_test(const char* name, void (*test)());

// Runs the named tests, or all. `who` is the name of this process in its output. It prints the
// names of passed tests only if `is_verbose`. Returns the exit status: 0 if all tests passed.
int run(const std::string& who, bool is_verbose);

// Returns the text of the Error that `call` throws; empty if it throws none.
template <class Call>
std::string error_of(Call call) {
  try {
    call();
    return "";
  } catch (const easyddl::Error& error) {
    return error.what();
  }
}

template <class A, class B>
void expect_equal(const A& a, const B& b, const char* text, const char* where) {
  if (a == b) return;
  std::ostringstream message;
  message << where << ": " << text << ": " << a << " is not " << b;
  throw Failure(message.str());
}

void expect(bool holds, const char* text, const char* where);
void expect_contains(const std::string& text, const std::string& part, const char* where);

}  // namespace trial

#define TRIAL_TEXT_(line) #line
#define TRIAL_LINE_(line) TRIAL_TEXT_(line)
#define TRIAL_WHERE_ __FILE__ ":" TRIAL_LINE_(__LINE__)

#define TEST(name)                                                                   \
  static void name();                                                                \
  [[maybe_unused]] static const bool name##_is_added = trial::add_test(#name, name); \
  static void name()

#define EXPECT(condition) trial::expect(condition, #condition, TRIAL_WHERE_)
#define EXPECT_EQUAL(a, b) trial::expect_equal(a, b, #a " == " #b, TRIAL_WHERE_)
#define EXPECT_CONTAINS(text, part) trial::expect_contains(text, part, TRIAL_WHERE_)
