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
constexpr size_t kEndWarnings = 4;

// Prints `text` on the root when the job ends, if all ranks have passed the same text for this
// subject.
void warn_at_end(size_t subject, const std::string& text);

}  // namespace easyddl
