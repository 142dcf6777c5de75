#include "runtime/liveness_monitor.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <future>
#include <thread>
#include <vector>

#include "common/console.h"
#include "common/thread.h"
#include "mpi/agreement.h"
#include "mpi/comm.h"
#include "runtime/job_abort.h"

namespace easyddl {
namespace {

struct PeerState {
  pthread_mutex_t held;  // locked by its process while that lives
  std::atomic<uint32_t> announced;
};

void make_mutex(pthread_mutex_t* mutex) {
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &attributes);
  pthread_mutexattr_destroy(&attributes);
}

[[noreturn]] void sleep_forever() {
  for (;;) pause();
}

}  // namespace

struct LivenessMonitor::SharedState {
  std::atomic<uint32_t> reported;
  PeerState peers[1];  // one for each process
};

LivenessMonitor::LivenessMonitor(const Topology& topology)
    : segment_(
          topology.machine.get(),
          sizeof(SharedState) + sizeof(PeerState) * static_cast<size_t>(topology.machine.size())),
      shared_state_(static_cast<SharedState*>(segment_.data())),
      mine_(topology.machine.rank()),
      next_((mine_ + 1) % topology.machine.size()) {
  const std::vector<pid_t> pids = gather(topology.machine.get(), getpid());
  const std::vector<int> ranks = gather(topology.machine.get(), topology.rank);
  if (topology.machine.size() == 1 || shared_state_ == nullptr) return;
  const size_t next = static_cast<size_t>(next_);
  description_ = topology.name_of(ranks[next]) + " (process " + std::to_string(pids[next]) + ")";
  start(topology);
}

void LivenessMonitor::start(const Topology& topology) {
  if (mine_ == 0) {
    for (int i = 0; i < topology.machine.size(); ++i) make_mutex(&shared_state_->peers[i].held);
  }
  all_or_none(topology.machine.get(), [] {});  // so that all ranks see the mutexes
  std::promise<void> holding;
  std::promise<bool> all_hold;
  // Detached, because it sleeps until the process ends.
  const auto sleep = [this, &holding, go = all_hold.get_future().share()] {
    pthread_mutex_lock(&shared_state_->peers[mine_].held);
    holding.set_value();
    if (go.get()) watch();
  };
  try {
    all_or_none(topology.machine.get(), [&] {
      start_thread("easyddl peers", "that notices when a process of this machine dies", sleep)
          .detach();
      holding.get_future().wait();
    });
  } catch (...) {
    all_hold.set_value(false);
    throw;
  }
  all_hold.set_value(true);
}

void LivenessMonitor::watch() {
  PeerState& next = shared_state_->peers[next_];
  // This thread must not end, because it holds its own mutex. The kernel would release that mutex,
  // and the previous process of the ring would report this live process as dead.
  if (pthread_mutex_lock(&next.held) != EOWNERDEAD || next.announced.load() != 0) sleep_forever();
  // Only the first rank to notice reports it, because the launcher may already be ending the
  // others.
  if (shared_state_->reported.exchange(1) == 0) {
    write_line("easyddl: " + description_ +
               " died: it was killed, crashed, or called os._exit. Ending the job.");
  }
  // Gives the launcher time to end the job by itself, which yields a better exit status.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  end_job(1);
}

void LivenessMonitor::announce_exit() {
  if (shared_state_ != nullptr) shared_state_->peers[mine_].announced.store(1);
}

void LivenessMonitor::announce_job_end() {
  if (shared_state_ != nullptr) shared_state_->reported.store(1);
}

}  // namespace easyddl
