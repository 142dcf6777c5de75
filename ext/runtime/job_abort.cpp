#include "runtime/job_abort.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "mpi/mpi.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

std::atomic<void (*)()> g_before_end{nullptr};

}  // namespace

void end_job(int status) {
  if (Trace* trace = Trace::on()) trace->flush();
  if (auto* const before_end = g_before_end.load()) before_end();
  // Gives the launcher time to forward this rank's output, which holds the reason. It may drop
  // output that it has not forwarded when the job ends.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  mpi_functions().MPI_Abort(MPI_COMM_WORLD, status);
  _exit(status);
}

void set_before_end_of_job(void (*function)()) { g_before_end = function; }

}  // namespace easyddl
