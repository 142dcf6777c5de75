#include "runtime/startup_monitor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <utility>

#include "common/console.h"
#include "common/rank_name.h"
#include "common/thread.h"
#include "runtime/job_abort.h"

namespace easyddl {
namespace {

constexpr std::chrono::milliseconds kPeriod{50};
// The time between two looks at the ranks of this host.
constexpr std::chrono::seconds kLook{2};
// The time that Python has to raise KeyboardInterrupt after Ctrl-C, which ends the process more
// orderly.
constexpr std::chrono::seconds kInterpreterTimeout{1};
// The time that MPI_Abort has to end the job.
constexpr std::chrono::seconds kAbortTimeout{10};

// Set by the handler of SIGINT. Python's own handler only sets a flag for the interpreter, which
// does not run during MPI_Init.
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

// The default action already ends the process, and an ignored signal must stay ignored.
bool has_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void install_interrupt_handler() {
  if (sigaction(SIGINT, nullptr, &g_previous) != 0 || !has_handler(g_previous)) return;
  struct sigaction ours = g_previous;
  ours.sa_sigaction = on_interrupt;
  ours.sa_flags |= SA_SIGINFO;
  sigaction(SIGINT, &ours, nullptr);
}

void restore_interrupt_handler() {
  struct sigaction current{};
  if (sigaction(SIGINT, nullptr, &current) != 0) return;
  const bool ours = (current.sa_flags & SA_SIGINFO) != 0 && current.sa_sigaction == on_interrupt;
  if (ours) sigaction(SIGINT, &g_previous, nullptr);
}

// What often keeps a rank from its start, without any sign of an error.
constexpr const char* kStandardInput =
    " A rank that reads standard input, as input() and `python - < train.py` do, never reaches it, "
    "because launchers pass standard input to rank 0 alone.";

// Ends this process by a signal, which every launcher treats as a failure of the job, or with a
// status if `signal` is 0.
[[noreturn]] void end_process(int status, int signal) {
  if (signal == 0) _exit(status);
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

StartupMonitor::StartupMonitor(int rank, const std::string& host, Deadlines deadlines,
                               LocalRanks local_ranks, bool may_exit)
    : name_(rank_on_host(rank, host)),
      deadlines_(deadlines),
      local_ranks_(std::move(local_ranks)),
      may_exit_(may_exit) {
  thread_ = start_thread("easyddl start", "that monitors the start", [this] { run(); });
  install_interrupt_handler();
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
  restore_interrupt_handler();
}

double StartupMonitor::seconds() { return time_.seconds_since(since_); }

std::string StartupMonitor::describe_wait() {
  return name_ + " has waited for " + rounded(seconds()) + " s in the start of easyddl, in " +
         step_ + ".";
}

void StartupMonitor::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  bool has_warned = false;
  auto next_look = since_ + kLook;
  std::optional<Clock::time_point> interrupted;
  while (!stopped_) {
    wake_.wait_for(lock, kPeriod);
    if (stopped_) return;
    time_.tick();
    if (g_interrupted && !interrupted) interrupted = Clock::now();
    if (interrupted && Clock::now() - *interrupted >= kInterpreterTimeout) {
      end(name_ + " was interrupted in the start of easyddl, in " + step_ + ".", 130, SIGINT);
    }
    if (!has_mpi_ && Clock::now() >= next_look) {
      look_at_local_ranks();
      next_look = Clock::now() + kLook;
    }
    if (deadlines_.abort > 0 && seconds() >= deadlines_.abort) {
      end(describe_wait() + " That is too long: EASYDDL_STALL_ABORT is " +
              rounded(deadlines_.abort) + " s. Ending the job." + kStandardInput,
          1, SIGTERM);
    }
    if (!has_warned && deadlines_.warn > 0 &&
        (seconds() >= deadlines_.warn || looks_with_readers_ > 1)) {
      has_warned = true;
      write_line(
          "easyddl: warning: " + describe_wait() +
          "\n  All ranks must reach this step. A rank that prints no such line has not reached it: "
          "it has failed (see its output), has ended, or has not yet reached its first use of "
          "easyddl." +
          kStandardInput);
    }
  }
}

// Counts looks at ranks that wait for input. Ends the job if a rank has ended, unless its process
// was only about to be replaced by another.
void StartupMonitor::look_at_local_ranks() {
  looks_with_readers_ = local_ranks_.any_waits_for_input() ? looks_with_readers_ + 1 : 0;
  const int ended = local_ranks_.ended();
  looks_with_ended_ranks_ = ended > 0 ? looks_with_ended_ranks_ + 1 : 0;
  if (looks_with_ended_ranks_ < 2) return;
  end(describe_wait() + " MPI cannot start: of the " + std::to_string(local_ranks_.count()) +
          " ranks on this host, " + std::to_string(ended) + (ended == 1 ? " has" : " have") +
          " already ended. Ending the job. A script that Python reads from standard input, as in "
          "`python - < train.py`, reaches rank 0 alone.",
      1, SIGTERM);
}

// Called with the lock held, so that the start does not end meanwhile.
void StartupMonitor::end(const std::string& reason, int status, int signal) const {
  if (may_exit_) signal = 0;
  write_line("easyddl: " + reason);
  if (has_mpi_) {
    // MPI_Abort may wait for a lock that the waiting thread holds.
    std::thread([status, signal] {
      std::this_thread::sleep_for(kAbortTimeout);
      end_process(status, signal);
    }).detach();
    end_job(status);
  }
  // Gives the launcher time to forward this rank's output, which holds the reason.
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  end_process(status, signal);
}

}  // namespace easyddl
