#include "algorithms/bruck.h"

#include <algorithm>
#include <cstring>

namespace easyddl {

// Block i is that of rank (rank + i) mod size.
void add_bruck_all_gather(Crossing& crossing, MPI_Comm comm, int rank, int size, const void* mine,
                          size_t bytes) {
  crossing.data.resize(bytes * static_cast<size_t>(size));
  std::memcpy(crossing.data.data(), mine, bytes);
  for (int held = 1; held < size; held *= 2) {
    const size_t length = static_cast<size_t>(std::min(held, size - held)) * bytes;
    crossing.add("gather values", [=, &crossing] {
      uint8_t* const blocks = crossing.data.data();
      crossing.receive(comm, blocks + static_cast<size_t>(held) * bytes, length,
                       (rank + held) % size);
      crossing.send(comm, blocks, length, (rank + size - held) % size);
    });
  }
}

void copy_gathered(const Crossing& crossing, int rank, int size, void* all, size_t bytes) {
  for (int i = 0; i < size; ++i) {
    const size_t from = static_cast<size_t>((rank + i) % size);
    std::memcpy(static_cast<uint8_t*>(all) + from * bytes,
                crossing.data.data() + static_cast<size_t>(i) * bytes, bytes);
  }
}

}  // namespace easyddl
