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

#include "common/agreement.h"
#include "common/check.h"
#include "common/console.h"
#include "common/thread.h"
#include "runtime/job_abort.h"

namespace easyddl {
namespace {

struct Seat {
  pthread_mutex_t held;  // by its process, for as long as that lives
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

// Everyone's value, by their place on the machine.
std::vector<int64_t> gather(const Comm& machine, int64_t mine) {
  std::vector<int64_t> all(static_cast<size_t>(machine.size()));
  EASYDDL_MPI(MPI_Allgather, &mine, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, machine.get());
  return all;
}

}  // namespace

struct PeerWatch::Board {
  std::atomic<uint32_t> reported;
  Seat seats[1];  // one a process
};

PeerWatch::PeerWatch(const Layout& layout)
    : segment_(layout.machine.get(),
               sizeof(Board) + sizeof(Seat) * static_cast<size_t>(layout.machine.size())),
      board_(static_cast<Board*>(segment_.data())),
      mine_(layout.machine.rank()),
      next_((mine_ + 1) % layout.machine.size()) {
  const std::vector<int64_t> pids = gather(layout.machine, getpid());
  const std::vector<int64_t> ranks = gather(layout.machine, layout.rank);
  if (layout.machine.size() == 1 || board_ == nullptr) return;
  const size_t next = static_cast<size_t>(next_);
  description_ = layout.name_of(ranks[next]) + " (process " + std::to_string(pids[next]) + ")";
  start(layout);
}

void PeerWatch::start(const Layout& layout) {
  if (mine_ == 0) {
    for (int i = 0; i < layout.machine.size(); ++i) make_mutex(&board_->seats[i].held);
  }
  EASYDDL_MPI(MPI_Barrier, layout.machine.get());
  std::promise<void> holding;
  std::promise<bool> all_hold;
  // Detached: it sleeps until the process ends, and then there is nothing left to wait for.
  const auto sleep = [this, &holding, go = all_hold.get_future().share()] {
    pthread_mutex_lock(&board_->seats[mine_].held);
    holding.set_value();
    if (go.get()) watch();
  };
  try {
    all_or_none(layout.machine.get(), [&] {
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

void PeerWatch::watch() {
  Seat& next = board_->seats[next_];
  if (pthread_mutex_lock(&next.held) != EOWNERDEAD) return;
  if (next.announced.load() != 0) return;
  // The first to notice speaks for all: the launcher may be ending the others by now.
  if (board_->reported.exchange(1) == 0) {
    write_line("easyddl: " + description_ +
               " died: it was killed, crashed, or called os._exit. Ending the job.");
  }
  // A launcher that saw it too ends the job by itself, which gives the better exit status.
  std::this_thread::sleep_for(std::chrono::seconds(2));
  end_job(1);
}

void PeerWatch::announce_end() {
  if (board_ != nullptr) board_->seats[mine_].announced.store(1);
}

void PeerWatch::announce_end_of_all() {
  if (board_ != nullptr) board_->reported.store(1);
}

}  // namespace easyddl
