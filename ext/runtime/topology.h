// Which ranks share a host, and which hosts share racks and larger groups.
#pragma once

#include <string>
#include <vector>

#include "common/rank_name.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"

namespace easyddl {

// A rank's position as the public API reports it (`local_rank` and so on), by which users divide
// GPUs, cores and files. Ranks that run on one kernel with one host name are on one machine. They
// may be on several hosts for the engine, if they cannot open each other's memory. Machines are
// numbered in the order of their lowest rank.
struct Place {
  int local_rank, local_size, node_rank, num_nodes;
};

// The ranks of a host are its members, in the order of their ranks. Hosts are numbered in the order
// of their lowest rank. The leaders of a host are the members that reduce a shard of the data
// across hosts. Every host has the same number of leaders: as many as the host with the fewest
// ranks has members.
struct Topology {
  // A level of groups. The members of a group are hosts on the innermost level, such as the hosts
  // of a rack, and the groups of the level below on every other, such as the racks of an aisle. The
  // last level is one group. Groups, like members, are numbered as their first hosts in `order`.
  // The leaders of a group are its first members, whose shards are reduced on the next level. Every
  // group of a level has as many leaders as the smallest of them has members.
  struct Level {
    int num_groups, num_leaders;
    std::vector<int> group_of;  // by host
    MpiComm comm;  // the ranks of this group with this rank's shard, in the order of the members;
                   // null if this rank has no shard on this level
  };

  // Collective over `world`. `host` is the name of this rank's host, from the user or the system.
  // Ranks share a host if the names are equal and they can open each other's memory. `racks` names
  // the rack of each host, in the order of the hosts, separated by commas. A name may have parts
  // for larger groups, the outermost first, as in "aisle/rack". If `racks` is empty, there is one
  // group. `host_order` lists the numbers of all hosts, separated by commas, in the order in which
  // the levels take them; if it is empty, that is 0, 1, 2 and so on.
  Topology(MPI_Comm world, const std::string& host, const std::string& racks,
           const std::string& host_order);

  int rank, size, local_rank, local_size, node_rank, num_nodes, num_leaders;
  Place place;
  bool cores_are_shared;             // the machine has fewer cores than ranks
  std::vector<int> node_of;          // by rank
  std::vector<std::string> host_of;  // by rank
  MpiComm machine;  // all ranks on this machine, even if it simulates several hosts
  MpiComm host;     // the ranks of this host
  MpiComm across;   // the leaders with this local rank on all hosts; null if this rank is no leader
  std::vector<size_t> order;  // the hosts in the order in which the levels take them
  std::vector<Level> levels;  // the innermost first

  bool has_several_hosts() const { return num_nodes > 1; }

  // Returns how many ranks of this host own a shard each in a reduction.
  int num_owners() const { return has_several_hosts() ? num_leaders : local_size; }

  // Returns a rank's name, such as "rank 3 on host node7". The second function capitalizes it.
  template <class Integer>
  std::string name_of(Integer of) const {
    return rank_on_host(static_cast<int>(of), host_of[static_cast<size_t>(of)]);
  }
  template <class Integer>
  std::string capitalized_name_of(Integer of) const {
    return capitalized(name_of(of));
  }

 private:
  void name_hosts(MPI_Comm world, const std::string& host);
  void find_place(MPI_Comm world, const std::string& host);
  void count_cores(MPI_Comm world);
  void number_hosts(MPI_Comm world);
  void choose_leaders(MPI_Comm world);
  std::vector<std::vector<std::string>> parse_racks(const std::string& racks) const;
  void order_hosts(const std::string& host_order);
  void find_levels(MPI_Comm world, const std::string& racks);
};

}  // namespace easyddl
