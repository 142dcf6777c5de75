#include "runtime/topology.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <fstream>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/console.h"
#include "common/text.h"
#include "mpi/agreement.h"
#include "mpi/mpi.h"
#include "runtime/shared_segment.h"

namespace easyddl {
namespace {

using Name = std::array<char, 256>;

std::vector<Name> gather_names(MPI_Comm comm, const std::string& text) {
  Name mine;
  store(mine, text);
  return gather(comm, mine);
}

// Returns the lowest index that holds the same name as `index`. It is the same for equal names.
int first_equal(const std::vector<Name>& names, int index) {
  const auto found = std::find(names.begin(), names.end(), names[static_cast<size_t>(index)]);
  return static_cast<int>(found - names.begin());
}

// Returns an id that is the same for all processes of one kernel, whatever containers they are in.
std::string kernel_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

// Returns an id that is the same for processes that run on one kernel, see each other's process
// ids, and belong to one user.
std::string machine_id() {
  char space[64] = {};
  if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = '\0';
  return kernel_id() + ' ' + space + ' ' + std::to_string(geteuid());
}

// Collective over `world`. Returns the number of each rank's group. Groups are numbered in the
// order of their lowest rank. `lowest` is that of this rank's group.
std::vector<int> number_groups(MPI_Comm world, int lowest) {
  const std::vector<int> lowest_of = gather(world, lowest);
  std::vector<int> groups = lowest_of;
  std::sort(groups.begin(), groups.end());
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  std::vector<int> numbers;
  for (int each : lowest_of) {
    numbers.push_back(
        static_cast<int>(std::lower_bound(groups.begin(), groups.end(), each) - groups.begin()));
  }
  return numbers;
}

// Returns the number of each path's group. Paths that begin with the same `depth` parts are in one
// group. Groups are numbered as their first paths in `order`.
std::vector<int> number_groups(const std::vector<std::vector<std::string>>& paths, size_t depth,
                               const std::vector<size_t>& order) {
  std::vector<std::vector<std::string>> known;
  std::vector<int> numbers(paths.size());
  for (size_t index : order) {
    std::vector<std::string> path = paths[index];
    path.resize(depth);
    const auto found = std::find(known.begin(), known.end(), path);
    numbers[index] = static_cast<int>(found - known.begin());
    if (found == known.end()) known.push_back(path);
  }
  return numbers;
}

// Returns a bit for each core that this process may use. The size is found by trying, because a
// cpu_set_t holds only 1024 cores, and machines may have more.
std::vector<uint8_t> own_cores() {
  constexpr size_t kMostBytes = 1 << 20;
  std::vector<uint8_t> cores(sizeof(cpu_set_t));
  while (sched_getaffinity(0, cores.size(), reinterpret_cast<cpu_set_t*>(cores.data())) != 0) {
    if (errno != EINVAL || cores.size() == kMostBytes) check_system(-1, "sched_getaffinity");
    cores.assign(2 * cores.size(), 0);
  }
  return cores;
}

int count_bits(const std::vector<uint8_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), 0, [](int sum, uint8_t byte) {
    return sum + static_cast<int>(std::bitset<8>(byte).count());
  });
}

}  // namespace

Topology::Topology(MPI_Comm world, const std::string& name, const std::string& racks,
                   const std::string& host_order) {
  rank = rank_in(world);
  size = size_in(world);
  name_hosts(world, name);
  find_place(world, name);
  count_cores(world);
  number_hosts(world);
  choose_leaders(world);
  order_hosts(host_order);
  find_levels(world, racks);
}

void Topology::name_hosts(MPI_Comm world, const std::string& name) {
  for (const Name& each : gather_names(world, name)) host_of.emplace_back(each.data());
  const std::vector<Name> machines = gather_names(world, machine_id());
  machine = MpiComm::split(world, first_equal(machines, rank), rank);
  const std::vector<Name> hosts = gather_names(world, name + ' ' + machine_id());
  host = MpiComm::split(world, first_equal(hosts, rank), rank);
  // Equal names are not enough: if the members cannot open each other's memory, each is a host of
  // its own.
  bool shares = false;
  all_or_none(world, [&] { shares = SharedSegment(host.get(), 1).data() != nullptr; });
  if (!shares) host = MpiComm::split(host.get(), rank, 0);
  local_rank = host.rank();
  local_size = host.size();
}

void Topology::find_place(MPI_Comm world, const std::string& name) {
  const std::vector<Name> names = gather_names(world, name + ' ' + kernel_id());
  const MpiComm on_machine = MpiComm::split(world, first_equal(names, rank), rank);
  int lowest = rank;
  EASYDDL_MPI(MPI_Bcast, &lowest, 1, MPI_INT, 0, on_machine.get());
  const std::vector<int> machine_of = number_groups(world, lowest);
  place = {on_machine.rank(), on_machine.size(), machine_of[static_cast<size_t>(rank)],
           *std::max_element(machine_of.begin(), machine_of.end()) + 1};
  int least = local_size;
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, on_machine.get());
  if (place.local_rank != 0 || least == place.local_size) return;
  write_line(
      "easyddl: warning: the " + std::to_string(place.local_size) + " ranks on host " + name +
      " run on one machine, but not all of them can open each other's memory. They reduce "
      "gradients by messages, as if they were on several hosts, which is slower.\n  Likely causes: "
      "containers that do not share their process ids (start them with --pid=host, or in one pod "
      "with shareProcessNamespace), ranks of different users, or a /proc that hides processes.");
}

void Topology::count_cores(MPI_Comm world) {
  std::vector<uint8_t> cores;
  all_or_none(world, [&] { cores = own_cores(); });
  int bytes = static_cast<int>(cores.size());
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, &bytes, 1, MPI_INT, MPI_MAX, machine.get());
  cores.resize(static_cast<size_t>(bytes));
  // The union, because a launcher may bind each rank to other cores.
  EASYDDL_MPI(MPI_Allreduce, MPI_IN_PLACE, cores.data(), bytes, MPI_BYTE, MPI_BOR, machine.get());
  cores_are_shared = machine.size() > count_bits(cores);
}

void Topology::number_hosts(MPI_Comm world) {
  int lowest = rank;
  EASYDDL_MPI(MPI_Bcast, &lowest, 1, MPI_INT, 0, host.get());
  node_of = number_groups(world, lowest);
  node_rank = node_of[static_cast<size_t>(rank)];
  num_nodes = *std::max_element(node_of.begin(), node_of.end()) + 1;
}

void Topology::choose_leaders(MPI_Comm world) {
  EASYDDL_MPI(MPI_Allreduce, &local_size, &num_leaders, 1, MPI_INT, MPI_MIN, world);
  const bool is_leader = local_rank < num_leaders;
  across = MpiComm::split(world, is_leader ? local_rank : MPI_UNDEFINED, node_rank);
}

// Returns the parts of the name of each host's rack. Without racks no host has any.
std::vector<std::vector<std::string>> Topology::parse_racks(const std::string& racks) const {
  std::vector<std::vector<std::string>> paths(static_cast<size_t>(num_nodes));
  if (racks.empty()) return paths;
  const std::vector<std::string> names = split(racks, ',');
  const auto require = [&](bool is_right, const std::string& what) {
    if (is_right) return;
    throw Error(
        "EASYDDL_RACKS must name the rack of each host, in the order of the hosts, as in "
        "EASYDDL_RACKS=a,a,b,b for four. There are " +
        std::to_string(num_nodes) + " host(s). " + what + "Received on rank 0: '" + racks + "'");
  };
  const auto rack_of = [&](size_t node) {
    const auto first = std::find(node_of.begin(), node_of.end(), static_cast<int>(node));
    return "the rack of host " + host_of[static_cast<size_t>(first - node_of.begin())] + ", '" +
           names[node] + "'";
  };
  require(names.size() == paths.size(), "");
  for (size_t node = 0; node < names.size(); ++node) {
    paths[node] = split(names[node], '/');
    require(std::find(paths[node].begin(), paths[node].end(), "") == paths[node].end(),
            "A part of " + rack_of(node) + ", is empty. ");
    require(paths[node].size() == paths[0].size(),
            "All must have as many parts, the largest group first, as in a/x,a/y,b/z,b/z, but " +
                rack_of(0) + ", has " + std::to_string(paths[0].size()) + " and " + rack_of(node) +
                ", has " + std::to_string(paths[node].size()) + ". ");
  }
  return paths;
}

void Topology::order_hosts(const std::string& host_order) {
  order.resize(static_cast<size_t>(num_nodes));
  std::iota(order.begin(), order.end(), 0);
  if (host_order.empty()) return;
  std::vector<std::string> numbers;
  for (size_t host : order) numbers.push_back(std::to_string(host));
  const std::vector<std::string> names = split(host_order, ',');
  if (!std::is_permutation(names.begin(), names.end(), numbers.begin(), numbers.end()))
    throw Error(
        "EASYDDL_HOST_ORDER must list the number of each host once, as in "
        "EASYDDL_HOST_ORDER=0,2,1,3 for four. There are " +
        std::to_string(num_nodes) + " host(s). " +
        (place.num_nodes < num_nodes
             ? "Ranks that cannot open each other's memory count as hosts of their own, which no "
               "plan (`--plan` or EASYDDL_PLAN) knows. "
             : "") +
        "Received on rank 0: '" + host_order + "'");
  for (size_t i = 0; i < names.size(); ++i) order[i] = std::stoul(names[i]);
}

void Topology::find_levels(MPI_Comm world, const std::string& racks) {
  const std::vector<std::vector<std::string>> paths = parse_racks(racks);
  const size_t own = static_cast<size_t>(node_rank);
  std::vector<int> member_of(paths.size());  // by host
  for (size_t i = 0; i < order.size(); ++i) member_of[order[i]] = static_cast<int>(i);
  bool has_shard = local_rank < num_leaders;
  int shard = local_rank, num_shards = num_leaders;  // of a member
  do {
    Level level;
    level.group_of = number_groups(paths, paths[0].size() - levels.size(), order);
    level.num_groups = *std::max_element(level.group_of.begin(), level.group_of.end()) + 1;
    std::vector<int> sizes(static_cast<size_t>(level.num_groups)), position_of;  // by member
    for (size_t node : order) {
      const bool is_first_of_member = static_cast<size_t>(member_of[node]) == position_of.size();
      if (is_first_of_member)
        position_of.push_back(sizes[static_cast<size_t>(level.group_of[node])]++);
    }
    level.num_leaders = *std::min_element(sizes.begin(), sizes.end());
    const int position = position_of[static_cast<size_t>(member_of[own])];
    level.comm = MpiComm::split(
        world, has_shard ? level.group_of[own] * num_shards + shard : MPI_UNDEFINED, position);
    has_shard = has_shard && position < level.num_leaders;
    if (has_shard) shard += position * num_shards;
    num_shards *= level.num_leaders;
    member_of = level.group_of;
    levels.push_back(std::move(level));
  } while (levels.back().num_groups > 1);
}

}  // namespace easyddl
