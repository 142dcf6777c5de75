#include "algorithms/schedule.h"

#include "common/check.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

uint8_t* at_least(std::vector<uint8_t>& memory, size_t bytes) {
  if (memory.size() < bytes) memory.resize(bytes);
  return memory.data();
}

}  // namespace

void Schedule::send(MPI_Comm comm, const void* from, size_t bytes, int to) {
  if (bytes == 0) return;
  requests_.emplace_back();
  EASYDDL_MPI(MPI_Isend, from, static_cast<int>(bytes), MPI_BYTE, to, tag_, comm,
              &requests_.back());
}

void Schedule::receive(MPI_Comm comm, void* into, size_t bytes, int from) {
  if (bytes == 0) return;
  requests_.emplace_back();
  EASYDDL_MPI(MPI_Irecv, into, static_cast<int>(bytes), MPI_BYTE, from, tag_, comm,
              &requests_.back());
}

uint8_t* Schedule::inbox(size_t bytes) { return at_least(inbox_, bytes); }

uint8_t* Schedule::scratch(size_t bytes) { return at_least(scratch_, bytes); }

bool Schedule::have_messages_arrived() {
  if (!have_ended(requests_.data(), static_cast<int>(requests_.size()))) return false;
  requests_.clear();
  return true;
}

bool Schedule::advance() {
  while (have_messages_arrived()) {
    if (next_ == steps_.size()) {
      steps_.clear();
      next_ = 0;
      return true;
    }
    const auto& [name, step] = steps_[next_++];
    const Span span(name);
    step();
  }
  return false;
}

}  // namespace easyddl
