#include "farewell.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "check.h"

namespace easyddl {
namespace {

constexpr int kTag = 2;

}  // namespace

Farewell::Farewell(MPI_Comm world)
    : comm_(Comm::duplicate(world)), notices_(static_cast<size_t>(comm_.size())) {}

size_t Farewell::add_channel() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (channels_ == kChannels)
    throw Error("More than " + std::to_string(kChannels) + " channels are not supported.");
  return channels_++;
}

uint64_t Farewell::begin(size_t channel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return ++mine_.begun[channel];
}

uint64_t Farewell::begun(size_t channel) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return mine_.begun[channel];
}

// Takes in one notice, if any has come.
bool Farewell::receive_one() {
  int arrived = 0;
  MPI_Status status;
  EASYDDL_MPI(MPI_Iprobe, MPI_ANY_SOURCE, kTag, comm_.get(), &arrived, &status);
  if (arrived == 0) return false;
  EASYDDL_MPI(MPI_Recv, &notices_[static_cast<size_t>(status.MPI_SOURCE)], sizeof(Notice), MPI_BYTE,
              status.MPI_SOURCE, kTag, comm_.get(), MPI_STATUS_IGNORE);
  return true;
}

void Farewell::check(size_t channel, uint64_t number, const std::string& what,
                     const Layout& layout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  while (receive_one()) {
  }
  for (size_t rank = 0; rank < notices_.size(); ++rank) {
    const Notice& notice = notices_[rank];
    if (notice.left == 0 || notice.begun[channel] >= number) continue;
    throw Error("Rank " + std::to_string(rank) + " on host " + layout.host_of[rank] +
                " has ended its script, while rank " + std::to_string(layout.rank) + " on host " +
                layout.host_of[static_cast<size_t>(layout.rank)] + " waits for it in " + what +
                ". All ranks must take the same number of steps and call the same collectives.");
  }
}

bool Farewell::leave(bool flag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  mine_.left = 1;
  mine_.flag = flag ? 1 : 0;
  std::vector<MPI_Request> sends;
  for (int peer = 0; peer < comm_.size(); ++peer) {
    if (peer == comm_.rank()) continue;
    sends.emplace_back();
    EASYDDL_MPI(MPI_Isend, &mine_, sizeof mine_, MPI_BYTE, peer, kTag, comm_.get(), &sends.back());
  }
  notices_[static_cast<size_t>(comm_.rank())] = mine_;
  const auto here = [](const Notice& notice) { return notice.left == 0; };
  std::chrono::microseconds nap{20};
  int sent = 0;
  while (sent == 0 || std::any_of(notices_.begin(), notices_.end(), here)) {
    EASYDDL_MPI(MPI_Testall, static_cast<int>(sends.size()), sends.data(), &sent,
                MPI_STATUSES_IGNORE);
    if (receive_one()) continue;
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(5000));
  }
  return std::all_of(notices_.begin(), notices_.end(),
                     [](const Notice& notice) { return notice.flag == 1; });
}

}  // namespace easyddl
