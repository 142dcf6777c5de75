#include "collectives/value_exchange.h"

#include <cstring>

#include "algorithms/bruck.h"

namespace easyddl {

std::vector<uint64_t> values_of_hosts(CollectiveContext& context, uint64_t value) {
  Schedule& schedule = context.control_schedule();
  context.remote().plan_all_gather(schedule, value);
  context.complete(schedule);
  std::vector<uint64_t> all(static_cast<size_t>(context.topology().num_nodes));
  std::memcpy(all.data(), schedule.data.data(), all.size() * sizeof value);
  return all;
}

std::vector<int64_t> values_of_ranks(CollectiveContext& context, int64_t value) {
  const Topology& topology = context.topology();
  Schedule& schedule = context.control_schedule();
  add_bruck_all_gather(schedule, context.comm(), topology.rank, topology.size, &value,
                       sizeof value);
  context.complete(schedule, "wait for all ranks");
  std::vector<int64_t> all(static_cast<size_t>(topology.size));
  copy_gathered(schedule, topology.rank, topology.size, all.data(), sizeof value);
  return all;
}

}  // namespace easyddl
