/* To be preloaded: ends a process in which a thread polls MPI while another one is in MPI_Finalize.
   MPI forbids that, and MPICH takes no lock there. By chance alone, one job of some hundred
   would fail. */
#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

static atomic_int finalizes = 0;
static pthread_t finalizing;

static void look(void) {
  static const char text[] = "a thread has called MPI in another one's MPI_Finalize\n";
  if (!atomic_load(&finalizes) || pthread_equal(finalizing, pthread_self())) return;
  if (write(STDERR_FILENO, text, sizeof text - 1) < 0) abort();
  abort();
}

int MPI_Finalize(void) {
  finalizing = pthread_self();
  atomic_store(&finalizes, 1);
  return PMPI_Finalize();
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int *flag, MPI_Status *status) {
  look();
  return PMPI_Iprobe(source, tag, comm, flag, status);
}

int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status) {
  look();
  return PMPI_Test(request, flag, status);
}
