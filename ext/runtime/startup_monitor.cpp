#include "runtime/startup_monitor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>

#include "common/console.h"
#include "common/rank_name.h"
#include "common/thread.h"
#include "runtime/job_abort.h"

namespace easyddl {
namespace {

constexpr std::chrono::milliseconds kPeriod{50};
// After Ctrl-C: for Python to raise its KeyboardInterrupt where it still runs, which ends more
// orderly.
constexpr std::chrono::seconds kForPython{1};
// For MPI_Abort to end the job.
constexpr std::chrono::seconds kForAbort{10};

// Set by the handler of SIGINT. Python's own handler only makes a note for the interpreter, which
// does not run inside of MPI_Init.
std::atomic<bool> g_interrupted{false};
struct sigaction g_previous{};

void on_interrupt(int signal, siginfo_t* info, void* context) {
  g_interrupted = true;
  if ((g_previous.sa_flags & SA_SIGINFO) != 0) {
    g_previous.sa_sigaction(signal, info, context);
  } else {
    g_previous.sa_handler(signal);
  }
}

// By default SIGINT ends the process, and one that is ignored is not to end it.
bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void watch_interrupt() {
  if (sigaction(SIGINT, nullptr, &g_previous) != 0 || !has_handler(g_previous)) return;
  struct sigaction ours = g_previous;
  ours.sa_sigaction = on_interrupt;
  ours.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &ours, nullptr);
}

void forget_interrupt() {
  struct sigaction current{};
  if (sigaction(SIGINT, nullptr, &current) != 0) return;
  const bool ours = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_interrupt;
  if (ours) sigaction(SIGINT, &g_previous, nullptr);
}

// Ends this process by a signal, which every launcher takes for a failure of the job: MPICH's
// waits for ever where a process exits by itself before it has initialised MPI.
[[noreturn]] void end_by_signal(int status, int signal) {
  struct sigaction action{};
  action.sa_handler = SIG_DFL;
  sigaction(signal, &action, nullptr);
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  raise(signal);
  _exit(status);
}

}  // namespace

StartupMonitor::StartupMonitor(int rank, const std::string& host, Deadlines deadlines)
    : who_(rank_on_host(rank, host)), deadlines_(deadlines) {
  thread_ = start_thread("easyddl start", "that watches over the start", [this] { run(); });
  watch_interrupt();
}

StartupMonitor::~StartupMonitor() { stop(); }

void StartupMonitor::enter(const std::string& step, bool has_mpi) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_ = step;
  has_mpi_ = has_mpi;
}

void StartupMonitor::stop() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (stopped_) return;
    stopped_ = true;
  }
  wake_.notify_one();
  thread_.join();
  forget_interrupt();
}

double StartupMonitor::seconds() const {
  return std::chrono::duration<double>(Clock::now() - since_).count();
}

std::string StartupMonitor::waits_in() const {
  return who_ + " has waited for " + rounded(seconds()) + " s in the start of easyddl, in " +
         step_ + ".";
}

void StartupMonitor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool has_warned = false;
  std::optional<Clock::time_point> interrupted;
  while (!stopped_) {
    wake_.wait_for(lock, kPeriod);
    if (stopped_) return;
    if (g_interrupted && !interrupted) interrupted = Clock::now();
    if (interrupted && Clock::now() - *interrupted >= kForPython) {
      end(who_ + " was interrupted in the start of easyddl, in " + step_ + ".", 130, SIGINT);
    }
    if (deadlines_.abort > 0 && seconds() >= deadlines_.abort) {
      end(waits_in() + " That is too long: EASYDDL_STALL_ABORT is " + rounded(deadlines_.abort) +
              " s. Ending the job.",
          1, SIGTERM);
    }
    if (!has_warned && deadlines_.warn > 0 && seconds() >= deadlines_.warn) {
      has_warned = true;
      write_line("easyddl: warning: " + waits_in() +
                 "\n  All ranks must come to it. Those that write no such line have not: one has "
                 "failed, which its own output tells, has ended, or has not yet come to its first "
                 "use of easyddl.");
    }
  }
}

// Called with the lock held, so that the start does not end meanwhile.
void StartupMonitor::end(const std::string& reason, int status, int signal) const {
  write_line("easyddl: " + reason);
  if (has_mpi_) {
    // MPI_Abort may wait for a lock that the waiting thread holds.
    std::thread([status, signal] {
      std::this_thread::sleep_for(kForAbort);
      end_by_signal(status, signal);
    }).detach();
    end_job(status);
  }
  // A launcher may drop what it has not yet passed on of this rank's output: the reason.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  end_by_signal(status, signal);
}

}  // namespace easyddl
