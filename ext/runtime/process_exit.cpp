#include "runtime/process_exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/console.h"
#include "mpi/mpi.h"
#include "profiling/timeline.h"
#include "runtime/job_abort.h"
#include "runtime/world.h"

namespace easyddl {
namespace {

// Atomic, because the liveness monitor's thread may end the job while the main thread exits.
std::atomic<World*> g_world{nullptr};
std::atomic<pid_t> g_pid{0};

// The texts of `warn_at_end` by subject. Written by the interpreter's threads, and read after the
// interpreter has ended.
std::map<std::string, std::string> g_warnings;

// Returns the numbers by which ranks compare their warnings.
std::vector<uint64_t> hashes_of_warnings() {
  std::vector<uint64_t> hashes;
  for (const auto& warning : g_warnings) hashes.push_back(std::hash<std::string>{}(warning.second));
  return hashes;
}

// Prints the warnings that are chosen. `are_chosen` has a value for each of `hashes_of_warnings`.
// `ranks` says which ranks they are about.
void print_warnings(const std::vector<bool>& are_chosen, const std::string& ranks) {
  const std::string placeholder = "{ranks}";
  size_t next = 0;
  for (const auto& warning : g_warnings) {
    if (!are_chosen.at(next++)) continue;
    std::string text = warning.second;
    const size_t at = text.find(placeholder);
    if (at != std::string::npos) text.replace(at, placeholder.size(), ranks);
    write_line(text);
  }
}

void leave_job(World& world) {
  world.finish();
  // MPI may call this in MPI_Finalize, during which no other thread may call MPI, because MPICH
  // takes no lock there. So this thread stops the stall inspector's thread, and does its work.
  StallInspector& stall_inspector = world.stall_inspector();
  stall_inspector.stop();
  const std::vector<bool> are_common =
      world.exit_protocol().leave(hashes_of_warnings(), [&] { stall_inspector.serve(); });
  if (world.topology().rank == 0) print_warnings(are_common, "every rank");
  end_timeline(world.comm(), world.topology().cores_are_shared);
  world.liveness().announce_exit();
}

void leave_job_once() {
  static bool has_left = false;
  if (std::exchange(has_left, true)) return;
  try {
    leave_job(*g_world);
  } catch (const std::exception& error) {
    write_line(std::string("easyddl: at exit: ") + error.what());
    end_job(1);
  }
}

// Called by MPI_Finalize, which first deletes the attributes of MPI_COMM_SELF. The script may call
// MPI_Finalize, or mpi4py if it was imported before easyddl.
void at_finalize() {
  if (getpid() == g_pid) leave_job_once();
}

// glibc's on_exit passes the exit status. Neither Python's atexit nor its excepthook has it after
// sys.exit(1), and then MPI_Finalize would wait forever for the other ranks.
void at_exit(int status, void*) {
  status &= 0xff;  // what the kernel keeps of it
  int finalized = 0;
  mpi_functions().MPI_Finalized(&finalized);
  if (getpid() != g_pid || finalized != 0) return;
  const Topology& topology = g_world.load()->topology();
  if (status != 0 && topology.size > 1) {
    print_warnings(std::vector<bool>(g_warnings.size(), true),
                   "rank " + std::to_string(topology.rank));
    write_line("easyddl: " + topology.name_of(topology.rank) + " exited with status " +
               std::to_string(status) + ". Ending the job.");
    end_job(status);
  }
  // Not within MPI_Finalize, because threads of the script may still call MPI, which is not
  // permitted there.
  leave_job_once();
  mpi_functions().MPI_Finalize();
}

// Called before MPI_Abort, so that no process's end is reported.
void prepare_end_of_job() {
  g_world.load()->liveness().announce_job_end();
  g_pid = 0;  // MPI_Abort may call exit, whose handler must then do nothing
}

}  // namespace

void register_exit_handler(World* world) {
  g_world = world;
  g_pid = getpid();
  set_before_end_of_job(prepare_end_of_job);
  EASYDDL_MPI(call_in_finalize, at_finalize);
  on_exit(at_exit, nullptr);
}

void warn_at_end(const std::string& subject, const std::string& text) {
  g_warnings[subject] = text;
  if (text.empty()) g_warnings.erase(subject);
}

}  // namespace easyddl
