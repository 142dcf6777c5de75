// Where the ranks are: who shares a host with whom.
#pragma once

#include <string>
#include <vector>

#include "common/rank_name.h"
#include "mpi/comm.h"
#include "mpi/mpi.h"

namespace easyddl {

// A rank's position as the public API reports it (`local_rank` and so on), by which users divide
// GPUs, cores and files. The ranks that one kernel runs under one host name are on one machine,
// even if they cannot open each other's memory and so are several hosts for the engine. Machines
// are numbered in the order of their lowest rank.
struct Place {
  int local_rank, local_size, node_rank, num_nodes;
};

// The ranks of one host are its members, in the order of their ranks; hosts are numbered in
// the order of their lowest rank. Every host has the same number of leaders, the members
// that take a shard of the data across hosts: as many as the host with the fewest ranks has.
// Likewise every rack has as many leaders, hosts whose shards go across racks, as the rack with
// the fewest hosts has.
struct Topology {
  // Collective over `world`. `host` is this rank's host, as the user or the system names it.
  // Ranks share a host if the names are equal and they can open each other's memory. `racks`
  // names the rack of each host, by its number, with commas between; without them there is one.
  Topology(MPI_Comm world, const std::string& host, const std::string& racks);

  int rank, size, local_rank, local_size, node_rank, num_nodes, num_leaders;
  int num_racks, num_rack_leaders;
  Place place;
  bool cores_are_shared;             // the machine has fewer cores than ranks
  std::vector<int> node_of;          // by rank
  std::vector<std::string> host_of;  // by rank
  std::vector<int> rack_of;          // by host
  MpiComm machine;                   // all ranks on this machine, also where it plays several hosts
  MpiComm host;                      // the ranks of this host
  MpiComm across;        // the leaders with this local rank on all hosts; null if this rank is none
  MpiComm in_rack;       // those of them in this rack
  MpiComm across_racks;  // those of them that have this one's place in their racks; null if this
                         // has none among a rack's leaders

  // A rank in words, such as "rank 3 on host node7"; and at the beginning of a sentence.
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
  void number_racks(const std::string& racks);
  void choose_rack_leaders(MPI_Comm world);
};

}  // namespace easyddl
