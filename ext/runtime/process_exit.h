// The end of this process, and of the job with it.
#pragma once

#include <string>

namespace easyddl {

class World;

// Collective. From now on an exit of this process with status 0 waits for the other ranks and
// finalizes MPI; any other status ends the job. Exits of forked children do neither.
void watch_exit(World* world);

// Prints `text` on the root when the job ends, if all ranks have asked for it.
void warn_at_end(const std::string& text);

}  // namespace easyddl
