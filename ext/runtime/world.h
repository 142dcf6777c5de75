// The ranks of the job, and the services that all communicators use.
#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "algorithms/algorithm_rules.h"
#include "algorithms/gpu_algorithm.h"
#include "runtime/exit_protocol.h"
#include "runtime/liveness_monitor.h"
#include "runtime/stall_inspector.h"
#include "runtime/topology.h"

namespace easyddl {

// The user's options for the network. Those of rank 0 are used on all ranks.
struct NetworkOptions {
  std::string racks;            // see Topology
  std::string algorithm_rules;  // see AlgorithmRules
  std::string gpu = {};         // the name of a GpuAlgorithm, or empty
  std::string cuda_aware = {};  // whether MPI accepts GPU memory: 1, 0, or empty
  std::string host_order = {};  // see Topology
};

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  World(const std::string& host, Deadlines deadlines, const NetworkOptions& options);

  MPI_Comm comm() const { return comm_.get(); }
  const Topology& topology() const { return topology_; }
  const AlgorithmRules& algorithm_rules() const { return algorithm_rules_; }
  std::optional<GpuAlgorithm> gpu_algorithm() const { return gpu_algorithm_; }
  bool cuda_aware_mpi() const { return cuda_aware_mpi_; }
  ExitProtocol& exit_protocol() { return exit_protocol_; }
  LivenessMonitor& liveness() { return *liveness_; }
  StallInspector& stall_inspector() { return stall_inspector_; }

  // Adds a function that waits for work of this rank that must be done before the script ends.
  void add_to_finish(std::function<void()> wait);
  // Calls all functions of `add_to_finish`. Called before the end of the script.
  void finish();

 private:
  MpiComm comm_;
  Topology topology_;
  AlgorithmRules algorithm_rules_;
  std::optional<GpuAlgorithm> gpu_algorithm_;
  bool cuda_aware_mpi_;
  ExitProtocol exit_protocol_;
  LivenessMonitor* liveness_;  // never destroyed, because its thread uses it until the process ends
  StallInspector stall_inspector_;
  std::mutex mutex_;
  std::vector<std::function<void()>> to_finish_;
};

}  // namespace easyddl
