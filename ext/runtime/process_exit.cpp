#include "runtime/process_exit.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <utility>

#include "common/check.h"
#include "common/console.h"
#include "mpi/mpi.h"
#include "profiling/timeline.h"
#include "runtime/job_abort.h"
#include "runtime/mpich_shared_files.h"
#include "runtime/world.h"

namespace easyddl {
namespace {

// The thread that watches the peers may end the job while the main thread exits.
std::atomic<World*> g_world{nullptr};
std::atomic<pid_t> g_pid{0};
std::string g_warning;  // written by the interpreter's thread, read after it has ended

void leave_job(World& world) {
  world.finish();
  // MPI may call this in MPI_Finalize, where no other thread may call MPI: MPICH takes no lock
  // there. So this thread does the work of the one that it stops.
  StallInspector& stall_inspector = world.stall_inspector();
  stall_inspector.stop();
  const bool all_warn =
      world.exit_protocol().leave(!g_warning.empty(), [&] { stall_inspector.serve(); });
  if (all_warn && world.topology().rank == 0) write_line(g_warning);
  end_timeline(world.comm(), world.topology().cores_are_shared);
  world.liveness().announce_end();
}

void part_from_the_others() {
  static bool has_parted = false;
  if (std::exchange(has_parted, true)) return;
  try {
    leave_job(*g_world);
  } catch (const std::exception& error) {
    write_line(std::string("easyddl: at exit: ") + error.what());
    end_job(1);
  }
}

// MPI_Finalize deletes the attributes of MPI_COMM_SELF first: where the script calls it, or mpi4py
// that the script imported before easyddl.
void at_finalize() {
  if (getpid() == g_pid) part_from_the_others();
}

// glibc's on_exit tells the exit status, which neither Python's atexit nor its excepthook
// knows after sys.exit(1): MPI_Finalize would then wait for ranks that never come.
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
  // Not in MPI_Finalize: threads of the script may still call MPI, which they may not do there.
  part_from_the_others();
  mpi_functions().MPI_Finalize();
}

// Before MPI_Abort: no end of a process is a surprise any more.
void prepare_end_of_job() {
  g_world.load()->liveness().announce_end_of_all();
  g_pid = 0;  // MPI_Abort may call exit, which has nothing left to do
}

}  // namespace

void watch_exit(World* world) {
  delete_shared_files(world->topology().machine.get());
  g_world = world;
  g_pid = getpid();
  set_before_end_of_job(prepare_end_of_job);
  EASYDDL_MPI(call_in_finalize, at_finalize);
  on_exit(at_exit, nullptr);
}

void warn_at_end(const std::string& text) { g_warning = text; }

}  // namespace easyddl
