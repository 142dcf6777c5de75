// The job: all ranks, and what they share.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <typeindex>
#include <vector>

#include "algorithms/gpu_algorithm.h"
#include "algorithms/inter_host_algorithm.h"
#include "runtime/exit_protocol.h"
#include "runtime/liveness_monitor.h"
#include "runtime/stall_inspector.h"
#include "runtime/topology.h"

namespace easyddl {

// How data goes between hosts, as the user wishes. Rank 0's wishes count on all.
struct NetworkOptions {
  std::string racks;                 // as Topology takes them
  std::string inter_host_algorithm;  // the name of an InterHostAlgorithm, or none
  std::string gpu = {};              // the name of a GpuAlgorithm, or none
  std::string cuda_aware = {};       // whether MPI takes memory of GPUs: 1, 0, or none
};

class World {
 public:
  // Collective over MPI_COMM_WORLD, which must be initialised with MPI_THREAD_MULTIPLE.
  World(const std::string& host, Deadlines deadlines, const NetworkOptions& options);

  MPI_Comm comm() const { return comm_.get(); }
  const Topology& topology() const { return topology_; }
  std::optional<InterHostAlgorithm> inter_host_algorithm() const { return inter_host_algorithm_; }
  std::optional<GpuAlgorithm> gpu_algorithm() const { return gpu_algorithm_; }
  bool cuda_aware_mpi() const { return cuda_aware_mpi_; }
  ExitProtocol& exit_protocol() { return exit_protocol_; }
  LivenessMonitor& liveness() { return *liveness_; }
  StallInspector& stall_inspector() { return stall_inspector_; }
  // Collective: returns once all ranks have come here. To be called before what all make together
  // by MPI's own collectives, which know no deadlines. `what` is for errors.
  void meet(const std::string& what);

  // The one object of class T that belongs to this world, which users of the world share, such as a
  // thread. The first call makes it by `make`, which returns a std::unique_ptr<T>; the world
  // destroys it. So the world need not know the classes that are built on top of it.
  template <class T, class Make>
  T& shared(Make make) {
    SharedObject& place = shared_object(typeid(T));
    const std::lock_guard<std::mutex> lock(place.mutex);
    if (place.object == nullptr) place.object = std::shared_ptr<T>(make());
    return *static_cast<T*>(place.object.get());
  }

  // `wait` waits for work of this rank that must be done before the end of the script.
  void add_to_finish(std::function<void()> wait);
  // To be called before the end of the script: calls all functions of `add_to_finish`.
  void finish();

 private:
  struct SharedObject {
    std::mutex mutex;
    std::shared_ptr<void> object;
  };
  SharedObject& shared_object(std::type_index type);

  MpiComm comm_;
  Topology topology_;
  std::optional<InterHostAlgorithm> inter_host_algorithm_;
  std::optional<GpuAlgorithm> gpu_algorithm_;
  bool cuda_aware_mpi_;
  ExitProtocol exit_protocol_;
  LivenessMonitor*
      liveness_;  // never destroyed: its thread sleeps on its memory until the process ends
  StallInspector stall_inspector_;
  std::mutex mutex_;
  std::vector<std::function<void()>> to_finish_;
  std::map<std::type_index, SharedObject> shared_objects_;  // last: they use the rest
};

}  // namespace easyddl
