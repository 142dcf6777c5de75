#include "collectives/chunk_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/check.h"
#include "mpi/mpi.h"
#include "mpi/requests.h"

namespace easyddl {

void ChunkStream::begin(std::vector<Array> arrays) {
  arrays_ = std::move(arrays);
  next_ = offset_ = started_ = done_ = 0;
}

bool ChunkStream::advance(size_t ready) {
  while (begun_ != ended_ && end_first()) {
  }
  while (begun_ - ended_ < kWindow && start_next(ready)) {
  }
  return !is_in_progress();
}

// Starts the message of the next chunk. Returns false if no chunk is ready. Both sides skip empty
// arrays.
bool ChunkStream::start_next(size_t ready) {
  while (next_ < arrays_.size() && offset_ == arrays_[next_].bytes) {
    ++next_;
    offset_ = 0;
  }
  if (next_ == arrays_.size()) return false;
  const Array& array = arrays_[next_];
  const size_t bytes = std::min(array.chunk_bytes, array.bytes - offset_);
  if (started_ + bytes > ready) return false;
  Slot& slot = slots_[begun_ % kWindow];
  slot.bytes = bytes;
  slot.target = array.data + offset_;
  if (slot.memory.size() < slot.bytes) slot.memory.resize(slot.bytes);
  const int count = static_cast<int>(slot.bytes);
  if (direction_ == Direction::send) {
    std::memcpy(slot.memory.data(), slot.target, slot.bytes);
    EASYDDL_MPI(MPI_Isend, slot.memory.data(), count, MPI_BYTE, array.peer, tag_, comm_,
                &slot.request);
  } else {
    EASYDDL_MPI(MPI_Irecv, slot.memory.data(), count, MPI_BYTE, array.peer, tag_, comm_,
                &slot.request);
  }
  offset_ += bytes;
  started_ += bytes;
  ++begun_;
  return true;
}

// Returns whether the oldest message in progress has ended. Copies a received chunk to its array.
bool ChunkStream::end_first() {
  Slot& slot = slots_[ended_ % kWindow];
  if (!have_ended(&slot.request, 1)) return false;
  if (direction_ == Direction::receive) std::memcpy(slot.target, slot.memory.data(), slot.bytes);
  done_ += slot.bytes;
  ++ended_;
  return true;
}

}  // namespace easyddl
