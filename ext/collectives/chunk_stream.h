// Sends and receives long arrays between pairs of ranks, in chunks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "mpi/mpi.h"

namespace easyddl {

// Sends arrays to ranks, or receives arrays from ranks, one after the other. MPI reads and writes
// only the stream's own buffers: an interrupted collective leaves requests behind, and the caller
// may free or change its arrays while MPI still uses these. Chunks also keep MPI's counts within an
// int.
//
// The sending and the receiving stream of two ranks must list the same arrays in the same order. A
// stream proceeds only while a thread calls `advance`.
class ChunkStream {
 public:
  enum class Direction { send, receive };

  // So long that a message's latency does not matter, and so short that a chunk fits in the cache.
  static constexpr size_t kChunkBytes = 1 << 20;
  // So short that MPI sends the chunk through its own buffers, instead of having the receiver read
  // the memory of the sender.
  static constexpr size_t kBufferedChunkBytes = 4 << 10;

  struct Array {
    int peer;
    uint8_t* data;  // only read by a stream that sends
    size_t bytes;
    size_t chunk_bytes = kChunkBytes;  // the same on both sides
  };

  ChunkStream(Direction direction, MPI_Comm comm, int tag)
      : direction_(direction), comm_(comm), tag_(tag) {}

  // Begins to send or receive these arrays. The stream must not be in progress.
  void begin(std::vector<Array> arrays);

  // Completes the messages that have arrived, and starts the next ones. Only the first `ready`
  // bytes may be sent yet. Returns true once all arrays have been sent or received.
  bool advance(size_t ready = SIZE_MAX);

  // Returns how many bytes have been sent or received.
  size_t done() const { return done_; }

  bool is_in_progress() const { return begun_ != ended_ || next_ < arrays_.size(); }

 private:
  // The number of messages in progress at a time.
  static constexpr size_t kWindow = 4;

  struct Slot {
    std::vector<uint8_t> memory;  // kept for the next array
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
  size_t next_ = 0, offset_ = 0;   // the next chunk's array, and its offset in it
  size_t begun_ = 0, ended_ = 0;   // chunks
  size_t started_ = 0, done_ = 0;  // bytes
  std::array<Slot, kWindow> slots_;
};

}  // namespace easyddl
