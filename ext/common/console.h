// Lines on standard error.
#pragma once

#include <string>

namespace easyddl {

// Writes a line to standard error in one system call, so that lines of ranks do not mix.
void write_line(const std::string& line);

}  // namespace easyddl
