// Sends and receives long arrays between pairs of ranks, in chunks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// Sends arrays to ranks, or receives arrays from ranks, one after the other. MPI sees only memory
// of the stream's own: a collective that is interrupted leaves requests behind, and the caller's
// arrays may be gone or changed while MPI still reads or writes. Chunks also keep counts within
// MPI's int.
//
// A pair of streams of two ranks must name the same arrays in the same order. It moves on only
// while somebody calls `advance`.
class ChunkStream {
 public:
  enum class Direction { send, receive };

  struct Array {
    int peer;
    uint8_t* data;  // only read by a stream that sends
    size_t bytes;
  };

  ChunkStream(Direction direction, MPI_Comm comm, int tag)
      : direction_(direction), comm_(comm), tag_(tag) {}

  // Begins with these arrays. The stream must not be in progress.
  void begin(std::vector<Array> arrays);

  // Takes in what has come, and starts the next messages: of the first `ready` bytes, where what is
  // to be sent is not there yet. True once all arrays have travelled.
  bool advance(size_t ready = SIZE_MAX);

  // How many bytes have travelled.
  size_t done() const { return done_; }

  bool is_under_way() const { return begun_ != ended_ || next_ < arrays_.size(); }

  // Gives back the memory of a stream that has ended.
  void release();

 private:
  // So many messages are in progress at a time.
  static constexpr size_t kWindow = 4;

  struct Slot {
    std::vector<uint8_t> memory;
    MPI_Request request = MPI_REQUEST_NULL;
    uint8_t* target = nullptr;
    size_t bytes = 0;
  };

  bool start_next(size_t ready);
  bool end_first();

  const Direction direction_;
  const MPI_Comm comm_;
  const int tag_;
  std::vector<Array> arrays_;
  size_t next_ = 0, offset_ = 0;   // the array, and the place in it, of the next chunk
  size_t begun_ = 0, ended_ = 0;   // chunks
  size_t started_ = 0, done_ = 0;  // bytes
  std::array<Slot, kWindow> slots_;
};

}  // namespace easyddl
