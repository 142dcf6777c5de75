// The ranks of this host before MPI has started, as the kernel shows their processes.
#pragma once

#include <string>
#include <vector>

namespace easyddl {

// Tells whether a rank of this host has ended although MPI has not started. MPICH's and Open MPI's
// launchers do not end a job for that, and the other ranks wait in MPI_Init forever.
class LocalRanks {
 public:
  // `agent` is the launcher's process that started the ranks of this host, or 0 if it is unknown.
  // `count` is the number of these ranks, and `variable` the environment variable that numbers
  // them. `launchers` has the names of the programs that start ranks.
  LocalRanks(int agent, int count, std::string variable, std::vector<std::string> launchers);

  int count() const { return count_; }

  // Returns how many of the ranks have ended. A rank counts as running while any of its processes
  // does, and also if its processes cannot be recognized.
  int ended() const;

  // Returns whether a rank other than 0 waits for standard input, which launchers pass to rank 0
  // alone. False if the kernel does not show it.
  bool any_waits_for_input() const;

 private:
  std::vector<int> children_of_agent() const;

  const int agent_, count_;
  const std::string variable_;
  const std::vector<std::string> launchers_;
};

}  // namespace easyddl
