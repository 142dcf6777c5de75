// What a rank does when its process exits.
#pragma once

#include <string>

namespace easyddl {

class World;

// Registers an exit handler: an exit of this process with status 0 waits for the other ranks and
// finalizes MPI; any other status ends the job. Exits of forked children do neither.
void register_exit_handler(World* world);

// Prints `text` on the root when the job ends, if all ranks have passed it for this subject. A rank
// that exits with a status other than 0 prints its own texts. "{ranks}" in a text becomes "every
// rank" or "rank N". A later text replaces an earlier one, and an empty text withdraws it.
void warn_at_end(const std::string& subject, const std::string& text);

}  // namespace easyddl
