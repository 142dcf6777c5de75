// Tests without a framework: a test is a function that throws where it fails.
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

// Puts a test on the list. All ranks run one program, so all have the same list.
bool enlist(const char* name, void (*test)());

// Runs those of the tests that are named, or all. `who` is this process in what it says; it
// tells of tests that passed only if `speaks`. Returns the exit status: 0 if all passed.
int run(const std::string& who, bool speaks);

// What an Error says that `call` throws; empty if it throws none.
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

#define TEST(name)                                                                  \
  static void name();                                                               \
  [[maybe_unused]] static const bool name##_is_listed = trial::enlist(#name, name); \
  static void name()

#define EXPECT(condition) trial::expect(condition, #condition, TRIAL_WHERE_)
#define EXPECT_EQUAL(a, b) trial::expect_equal(a, b, #a " == " #b, TRIAL_WHERE_)
#define EXPECT_CONTAINS(text, part) trial::expect_contains(text, part, TRIAL_WHERE_)
