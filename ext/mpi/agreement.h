// Failures of one rank that all ranks of a communicator learn of.
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

// Collective over `comm`. `problem` says what failed on this rank, if anything did. If a rank has
// a problem, all ranks throw the AgreedError of the lowest such rank.
void agree_on_failure(MPI_Comm comm, const std::optional<std::string>& problem);

// What an agreed error says of `problem`: on which rank and host of the job it occurred.
std::string of_this_rank(const std::string& problem);

// Collective over `comm`: runs `step` on all of its ranks. If it throws on any, all throw, so that
// no rank goes on to wait for one that has failed. `step` may itself be collective over a part of
// `comm` if all ranks of that part leave it alike.
template <class Step>
void all_or_none(MPI_Comm comm, Step step) {
  std::optional<std::string> problem;
  try {
    step();
  } catch (const AgreedError& error) {
    problem = error.what();
  } catch (const std::exception& error) {
    problem = of_this_rank(error.what());
  }
  agree_on_failure(comm, problem);
}

}  // namespace easyddl
