// What a rank does when its process exits.
#pragma once

#include <cstddef>
#include <string>

namespace easyddl {

class World;

// Registers an exit handler: an exit of this process with status 0 waits for the other ranks and
// finalizes MPI; any other status ends the job. Exits of forked children do neither.
void register_exit_handler(World* world);

// The number of subjects of `warn_at_end`.
constexpr size_t kEndWarnings = 3;

// Prints `text` on the root when the job ends, if all ranks have passed it for this subject. A
// later text replaces an earlier one, and an empty text withdraws it.
//
// A text may be about several items, such as the paths of files: each call adds one. `{}` in the
// text stands for those items that all ranks have added. Without such items it is not printed.
void warn_at_end(size_t subject, const std::string& text, const std::string& item);

}  // namespace easyddl
