#include "collectives/value_exchange.h"

#include <algorithm>
#include <cstring>

namespace easyddl {

std::vector<uint64_t> values_of_hosts(CollectiveContext& context, uint64_t value) {
  Schedule& schedule = context.control_schedule();
  context.remote().plan_all_gather(schedule, value);
  context.complete(schedule);
  std::vector<uint64_t> all(static_cast<size_t>(context.topology().num_nodes));
  std::memcpy(all.data(), schedule.data.data(), all.size() * sizeof value);
  return all;
}

// The all-gather of Bruck et al. (1997), which needs the fewest rounds. In round k a rank sends the
// first 2^k values that it holds to the rank 2^k positions before it. After ceil(log2(n)) rounds
// each of the n ranks holds all values, of which the first is its own.
std::vector<int64_t> values_of_ranks(CollectiveContext& context, int64_t value) {
  const int rank = context.topology().rank, size = context.topology().size;
  Schedule& schedule = context.control_schedule();
  std::vector<int64_t> all(static_cast<size_t>(size));
  schedule.data.resize(all.size() * sizeof value);
  std::memcpy(schedule.data.data(), &value, sizeof value);
  for (int held = 1; held < size; held *= 2) {
    const size_t begin = static_cast<size_t>(held) * sizeof value;
    const size_t bytes = static_cast<size_t>(std::min(held, size - held)) * sizeof value;
    schedule.add("gather values", [=, &schedule, comm = context.comm()] {
      uint8_t* const values = schedule.data.data();
      schedule.receive(comm, values + begin, bytes, (rank + held) % size);
      schedule.send(comm, values, bytes, (rank + size - held) % size);
    });
  }
  context.complete(schedule, "wait for all ranks");
  std::memcpy(all.data(), schedule.data.data(), schedule.data.size());
  std::rotate(all.begin(), all.end() - rank, all.end());
  return all;
}

}  // namespace easyddl
