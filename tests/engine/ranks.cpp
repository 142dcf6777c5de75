// The tests that need several ranks: mpirun -np 3 PROGRAM a,b,a [WARN ABORT]
//
// The first argument names the host of each rank, so that one machine can simulate several hosts.
// The others are the deadlines in seconds.
#include "ranks.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "loaded_mpi.h"
#include "mpi/mpi.h"
#include "runtime/process_exit.h"
#include "trial.h"

namespace ranks {
namespace {

// Never destroyed, as in the extension, because the exit handler needs it.
easyddl::World* g_world = nullptr;

std::vector<std::string> split(const std::string& text) {
  std::istringstream words(text);
  std::vector<std::string> all;
  for (std::string word; std::getline(words, word, ',');) all.push_back(word);
  return all;
}

}  // namespace

easyddl::World& world() { return *g_world; }
easyddl::Communicator& communicator() {
  static easyddl::Communicator& made = *new easyddl::Communicator(world());
  return made;
}
easyddl::ReducerGroup& reducer_group() {
  static easyddl::ReducerGroup& made = *new easyddl::ReducerGroup(communicator());
  return made;
}
int rank() { return g_world->topology().rank; }
int size() { return g_world->topology().size; }

std::vector<std::string> gather(const std::string& text) {
  std::array<char, 4096> mine{};
  std::memcpy(mine.data(), text.data(), std::min(text.size(), mine.size() - 1));
  std::vector<std::array<char, 4096>> all(static_cast<size_t>(size()));
  using namespace easyddl;
  EASYDDL_MPI(MPI_Allgather, mine.data(), 4096, MPI_CHAR, all.data(), 4096, MPI_CHAR,
              MPI_COMM_WORLD);
  std::vector<std::string> texts;
  for (const auto& each : all) texts.emplace_back(each.data());
  return texts;
}

void meet() { EASYDDL_MPI(MPI_Barrier, easyddl::MPI_COMM_WORLD); }

}  // namespace ranks

int main(int argc, char** argv) {
  using namespace easyddl;
  int rank = 0, size = 0;
  load_mpi_of_tests();
  auto level = mpi::ThreadLevel::single;
  EASYDDL_MPI(MPI_Init_thread, MPI_THREAD_MULTIPLE, &level);
  EASYDDL_MPI(MPI_Comm_rank, MPI_COMM_WORLD, &rank);
  EASYDDL_MPI(MPI_Comm_size, MPI_COMM_WORLD, &size);
  const std::vector<std::string> hosts = ranks::split(argc > 1 ? argv[1] : "");
  if (hosts.size() != static_cast<size_t>(size)) {
    std::fprintf(stderr, "The first argument must name %d hosts, one a rank.\n", size);
    EASYDDL_MPI(MPI_Abort, MPI_COMM_WORLD, 2);
  }
  const Deadlines deadlines{argc > 2 ? std::atof(argv[2]) : 0, argc > 3 ? std::atof(argv[3]) : 0};
  ranks::g_world = new World(hosts[static_cast<size_t>(rank)], deadlines,
                             {argc > 4 ? argv[4] : "", argc > 5 ? argv[5] : ""});
  register_exit_handler(ranks::g_world);
  return trial::run("rank " + std::to_string(rank) + ": ", rank == 0);
}
