#include "algorithms/bruck.h"

#include <algorithm>
#include <cstring>

namespace easyddl {

// Block i belongs to rank (rank + i) mod size.
void add_bruck_all_gather(Schedule& schedule, MPI_Comm comm, int rank, int size, const void* mine,
                          size_t bytes) {
  schedule.data.resize(bytes * static_cast<size_t>(size));
  std::memcpy(schedule.data.data(), mine, bytes);
  for (int held = 1; held < size; held *= 2) {
    const size_t length = static_cast<size_t>(std::min(held, size - held)) * bytes;
    schedule.add("gather values", [=, &schedule] {
      uint8_t* const blocks = schedule.data.data();
      schedule.receive(comm, blocks + static_cast<size_t>(held) * bytes, length,
                       (rank + held) % size);
      schedule.send(comm, blocks, length, (rank + size - held) % size);
    });
  }
}

void copy_gathered(const Schedule& schedule, int rank, int size, void* all, size_t bytes) {
  for (int i = 0; i < size; ++i) {
    const size_t from = static_cast<size_t>((rank + i) % size);
    std::memcpy(static_cast<uint8_t*>(all) + from * bytes,
                schedule.data.data() + static_cast<size_t>(i) * bytes, bytes);
  }
}

}  // namespace easyddl
