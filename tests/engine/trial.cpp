#include "trial.h"

#include <cstdio>
#include <exception>
#include <vector>

namespace trial {
namespace {

struct Test {
  const char* name;
  void (*run)();
};

std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

}  // namespace

bool add_test(const char* name, void (*test)()) {
  tests().push_back({name, test});
  return true;
}

int run(const std::string& who, bool is_verbose) {
  for (const Test& test : tests()) {
    try {
      test.run();
    } catch (const std::exception& error) {
      // The ranks may wait for each other: no further test can run.
      std::fprintf(stderr, "FAILED %s%s: %s\n", who.c_str(), test.name, error.what());
      return 1;
    }
    if (is_verbose) std::printf("passed %s\n", test.name);
    std::fflush(stdout);
  }
  return 0;
}

void expect(bool holds, const char* text, const char* where) {
  if (!holds) throw Failure(std::string(where) + ": " + text + " does not hold");
}

void expect_contains(const std::string& text, const std::string& part, const char* where) {
  if (text.find(part) != std::string::npos) return;
  throw Failure(std::string(where) + ": \"" + part + "\" is not in \"" + text + "\"");
}

}  // namespace trial
