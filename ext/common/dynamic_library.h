// Libraries that are opened at run time, and their functions.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "common/check.h"

namespace easyddl {

// Returns `path` if it is a file, or the path of `file` in it if it is a folder; empty if there is
// no such file.
std::string file_at(const std::string& path, const char* file);

// Returns the path of the library that holds a function.
std::string path_of(void* function);

// A library, which is never closed.
class DynamicLibrary {
 public:
  explicit DynamicLibrary(std::string what) : what_(std::move(what)) {}

  bool open(const std::string& file, int flags = 0) {
    if (handle_ != nullptr || file.empty()) return handle_ != nullptr;
    handle_ = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | flags);
    // RTLD_NOLOAD fails for a library that is not loaded, which is expected.
    if (handle_ == nullptr && (flags & RTLD_NOLOAD) == 0) error_ = dlerror();
    return handle_ != nullptr;
  }

  const std::string& error() const { return error_; }

  // Looks up a function by its name. It is null if it is optional and missing.
  template <class F>
  void find(F*& function, const char* name, bool is_optional = false) const {
    function = reinterpret_cast<F*>(dlsym(handle_, name));
    if (function == nullptr && !is_optional) {
      throw Error(what_ + " has no function " + name + ": it is too old.");
    }
  }

 private:
  std::string what_, error_;
  void* handle_ = nullptr;
};

}  // namespace easyddl
