// Agreement of all ranks of a communicator on a failure of one of them.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "common/check.h"
#include "mpi/mpi.h"

namespace easyddl {

// The Error that all ranks of a communicator throw together. It names the rank that failed.
class AgreedError : public Error {
 public:
  using Error::Error;
};

// Collective over `comm`. `problem` describes the failure of this rank, if it has one. If any rank
// has a failure, all ranks throw the AgreedError of the lowest such rank.
void agree_on_failure(MPI_Comm comm, const std::optional<std::string>& problem);

// Collective over `comm`. Returns the text of rank `root`.
std::string broadcast_text(MPI_Comm comm, std::string text, int root);

// Returns the text of an AgreedError: `problem`, with this rank and its host.
std::string describe_failure(const std::string& problem);

// Collective over `comm`. Runs `step` on all ranks. If it throws on any rank, all ranks throw, so
// that no rank continues and waits for a rank that has failed. `step` may itself be collective over
// a part of `comm`, if it succeeds or throws alike on all ranks of that part.
template <class Step>
void all_or_none(MPI_Comm comm, Step step) {
  std::optional<std::string> problem;
  try {
    step();
  } catch (const AgreedError& error) {
    problem = error.what();
  } catch (const std::exception& error) {
    problem = describe_failure(error.what());
  }
  agree_on_failure(comm, problem);
}

}  // namespace easyddl
