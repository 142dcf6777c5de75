#include "runtime/process_exit.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <exception>
#include <functional>
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
// The warnings by subject. Written by the interpreter's threads, and read after the interpreter has
// ended.
std::array<std::string, kEndWarnings> g_warnings;

// Returns a number by which ranks compare a text; 0 if it is empty.
int hash_of(const std::string& text) {
  constexpr size_t kMost = 1 << 30;
  return text.empty() ? 0 : static_cast<int>(1 + std::hash<std::string>{}(text) % kMost);
}

void leave_job(World& world) {
  world.finish();
  // MPI may call this in MPI_Finalize, during which no other thread may call MPI, because MPICH
  // takes no lock there. So this thread stops the stall inspector's thread, and does its work.
  StallInspector& stall_inspector = world.stall_inspector();
  stall_inspector.stop();
  std::vector<int> hashes;
  for (const std::string& warning : g_warnings) hashes.push_back(hash_of(warning));
  const std::vector<bool> all_warn =
      world.exit_protocol().leave(hashes, [&] { stall_inspector.serve(); });
  for (size_t i = 0; i < all_warn.size(); ++i) {
    if (all_warn[i] && world.topology().rank == 0) write_line(g_warnings[i]);
  }
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
  int finalized = 0;
  mpi_functions().MPI_Finalized(&finalized);
  if (getpid() != g_pid || finalized != 0) return;
  const Topology& topology = g_world.load()->topology();
  if (status != 0 && topology.size > 1) {
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

void warn_at_end(size_t subject, const std::string& text) { g_warnings.at(subject) = text; }

}  // namespace easyddl
