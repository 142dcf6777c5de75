#include "runtime/worker_signals.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <atomic>
#include <csignal>

#include "common/check.h"

namespace easyddl {
namespace {

// By signal, the id of the process that records it; 0 for none. Forked processes share the memory.
std::atomic<pid_t>* map_recorders() {
  void* memory = mmap(nullptr, NSIG * sizeof(std::atomic<pid_t>), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  check_system(memory == MAP_FAILED ? -1 : 0, "mmap");
  return static_cast<std::atomic<pid_t>*>(memory);
}

std::atomic<pid_t>* const g_recorders = map_recorders();

struct sigaction g_former[NSIG];

bool is_recorded_by_parent(int number) { return g_recorders[number] == getppid(); }

void handle(int number, siginfo_t* info, void* context) {
  if (is_recorded_by_parent(number) && info->si_pid != getppid()) {
    // The signal comes again when the parent ends.
    prctl(PR_SET_PDEATHSIG, number);
    if (is_recorded_by_parent(number)) return;
  }
  const struct sigaction& former = g_former[number];
  if (former.sa_flags & SA_SIGINFO) {
    former.sa_sigaction(number, info, context);
  } else if (former.sa_handler != SIG_DFL) {
    former.sa_handler(number);
  } else {
    sigaction(number, &former, nullptr);
    raise(number);  // it is blocked until this handler returns
  }
}

}  // namespace

void record_signal(int number, bool is_recorded) {
  g_recorders[number] = is_recorded ? getpid() : 0;
}

void leave_signals_to_parent(const std::vector<int>& numbers) {
  for (const int number : numbers) {
    struct sigaction action;
    sigaction(number, nullptr, &action);
    const bool has_flag = action.sa_flags & SA_SIGINFO;
    const bool is_left = has_flag && action.sa_sigaction == handle;
    if (is_left || (!has_flag && action.sa_handler == SIG_IGN)) continue;
    g_former[number] = action;
    // Python's handlers need that a signal interrupts calls. Programs without a handler do not
    // expect it.
    if (!has_flag && action.sa_handler == SIG_DFL) action.sa_flags |= SA_RESTART;
    action.sa_flags |= SA_SIGINFO;
    action.sa_sigaction = handle;
    sigaction(number, &action, nullptr);
  }
}

}  // namespace easyddl
