#include "common/console.h"

#include <unistd.h>

namespace easyddl {

void write_line(const std::string& line) {
  const std::string text = line + '\n';
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (count <= 0) return;
    written += static_cast<size_t>(count);
  }
}

}  // namespace easyddl
