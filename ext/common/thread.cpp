#include "common/thread.h"

#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "common/check.h"

namespace easyddl {
namespace {

// Blocks all signals until the end of the scope, for this thread and the threads that it starts
// meanwhile.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

std::thread start_thread(const char* name, const std::string& what, std::function<void()> run) {
  const BlockedSignals blocked;  // the new thread inherits the mask
  try {
    return std::thread([name, run = std::move(run)] {
      pthread_setname_np(pthread_self(), name);
      run();
    });
  } catch (const std::system_error& error) {
    throw Error("easyddl could not start the thread " + what + ": " + error.what() +
                ". The user or the container has reached its limit of processes and threads. Raise "
                "the limit (`ulimit -u`, or the pids limit of the container or the batch system), "
                "or start fewer ranks or data workers on this host.");
  }
}

}  // namespace easyddl
