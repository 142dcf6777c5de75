#include "common/dynamic_library.h"

#include <sys/stat.h>

namespace easyddl {

std::string file_at(const std::string& path, const char* file) {
  struct stat found{};
  if (path.empty() || stat(path.c_str(), &found) != 0) return "";
  if (!S_ISDIR(found.st_mode)) return path;
  const std::string inside = path + '/' + file;
  return stat(inside.c_str(), &found) == 0 ? inside : "";
}

std::string path_of(void* function) {
  Dl_info info{};
  return dladdr(function, &info) != 0 && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace easyddl
