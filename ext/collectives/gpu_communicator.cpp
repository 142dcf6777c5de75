#include "collectives/gpu_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <fstream>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/communicator.h"
#include "common/check.h"
#include "common/console.h"
#include "common/environment.h"
#include "profiling/trace.h"
#include "runtime/world.h"

namespace easyddl {
namespace {

// What crosses the hosts goes in chunks, so that copies and messages overlap; so many are copied
// ahead.
constexpr size_t kChunk = 1 << 20;
constexpr size_t kAhead = 8;

// From this version on NCCL can serve several ranks with one GPU, if it is told to.
constexpr int kSharesGpus = 23000;

template <size_t N>
void store(std::array<char, N>& room, const std::string& text) {
  room = {};
  std::memcpy(room.data(), text.data(), std::min(text.size(), N - 1));
}

GpuTopology gpu_topology_of(const Topology& topology) {
  std::vector<int> on_host(static_cast<size_t>(topology.num_nodes), 0);
  for (int host : topology.node_of) ++on_host[static_cast<size_t>(host)];
  return {topology.size, topology.num_nodes, *std::max_element(on_host.begin(), on_host.end()),
          topology.num_leaders};
}

size_t sum(const std::vector<size_t>& bytes) {
  size_t total = 0;
  for (size_t each : bytes) total += each;
  return total;
}

int count_gpus() {
  int count = 0;
  EASYDDL_CUDA(DeviceGetCount, &count);
  if (count == 0) throw Error("There is no GPU.");
  return count;
}

// What NCCL tells machines apart by: one that plays several hosts is one.
std::string machine() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return std::string(name.data()) + ' ' + boot;
}

}  // namespace

// What a rank tells the others before they connect.
struct GpuCommunicator::PeerInfo {
  std::array<char, 768> failure;  // why it cannot take part; empty if it can
  std::array<char, 64> host_id;   // NCCL_HOSTID
  std::array<char, 320> machine;
  std::array<char, 32> bus;         // the GPU's place in it
  CudaUuid uuid;                    // the GPU's, or that of its instance
  int32_t version;                  // NCCL's
  int32_t may_share_gpu;            // as NCCL has been told
  int32_t is_new_here;              // it has not been set up, or for another GPU
  int32_t lacks_world, lacks_host;  // it has not these communicators

  bool is_on_gpu_of(const PeerInfo& other) const {
    const bool is_same = std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
    return is_same || (machine == other.machine && bus == other.bus);
  }
};

// Of communicators that this rank leads, and why it cannot make them.
struct GpuCommunicator::NcclIds {
  std::array<char, 768> failure;
  NcclId world, host;
};

struct GpuCommunicator::NcclNeeds {
  bool world = false, host = false;  // communicators
  bool nccl() const { return world || host; }
};

size_t GpuLoad::total() const { return sum(bytes); }

GpuCommunicator::GpuCommunicator(World& world)
    : topology_(world.topology()),
      gpu_topology_(gpu_topology_of(world.topology())),
      wish_(world.gpu_algorithm()),
      mpi_takes_gpu_memory_(world.cuda_aware_mpi()),
      watch_(world, [this] { check(); }) {}

GpuCommunicator& GpuCommunicator::of(World& world) {
  return world.shared<GpuCommunicator>([&] {
    auto made = std::make_unique<GpuCommunicator>(world);
    world.add_to_finish([level = made.get()] { level->watch().drain(); });
    return made;
  });
}

GpuCommunicator::~GpuCommunicator() {
  if (gpu_ < 0) return;
  watch_.drain();
  cuda().CtxSetCurrent(context_of(gpu_));
}

GpuAlgorithm GpuCommunicator::algorithm_of(const GpuLoad& load) const {
  if (gpu_topology_.ranks > 1 && !NcclLevel::supports(load.dtype, load.reduction))
    return GpuAlgorithm::host;
  const GpuAlgorithm algorithm =
      wish_.value_or(cheapest_gpu_algorithm(load.total(), gpu_topology_));
  return algorithm == GpuAlgorithm::hierarchical && gpu_topology_.hosts == 1 ? GpuAlgorithm::nccl
                                                                             : algorithm;
}

GpuCommunicator::NcclNeeds GpuCommunicator::needs_of(const std::vector<GpuLoad>& loads) const {
  NcclNeeds needs;
  for (const GpuLoad& load : loads) {
    const GpuAlgorithm algorithm = algorithm_of(load);
    needs.world = needs.world || (algorithm == GpuAlgorithm::nccl && gpu_topology_.ranks > 1);
    needs.host =
        needs.host || (algorithm == GpuAlgorithm::hierarchical && gpu_topology_.most_on_a_host > 1);
  }
  return needs;
}

int GpuCommunicator::gpu_or_mine(std::optional<int> gpu) const {
  return gpu.value_or(gpu_ >= 0 ? gpu_ : topology_.local_rank % count_gpus());
}

void GpuCommunicator::prepare(Communicator& communicator, const std::vector<GpuLoad>& loads,
                              std::optional<int> gpu) {
  const NcclNeeds needs = needs_of(loads);
  const PeerInfo mine = peer_info(needs, gpu.value_or(-1));
  std::vector<PeerInfo> all(static_cast<size_t>(topology_.size));
  communicator.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                          Fingerprint("how the ranks exchange gradients on GPUs"));
  compare(all, needs);
  // All ranks do so together, since communicators go by GPUs.
  const bool anew = std::any_of(all.begin(), all.end(),
                                [](const PeerInfo& each) { return each.is_new_here != 0; });
  if (anew) set_up(gpu_or_mine(gpu));
  const CurrentContext current(context_of(gpu_));
  // Where a rank has failed half-way, others may have a communicator that it has not.
  const auto lacks = [&](auto member) {
    return anew || std::any_of(all.begin(), all.end(),
                               [&](const PeerInfo& each) { return each.*member != 0; });
  };
  connect(communicator, {needs.world && lacks(&PeerInfo::lacks_world),
                         needs.host && lacks(&PeerInfo::lacks_host)});
  warm_up(communicator, loads);
}

void GpuCommunicator::set_up(int gpu) {
  watch_.drain();
  watch_.forget_gpu();
  if (gpu_ >= 0) {
    const CurrentContext before(context_of(gpu_));
    const std::lock_guard<std::mutex> lock(communicators_mutex_);
    world_.reset();
    host_.reset();
    hosts_are_connected_ = false;
    scratch_.release();
    pinned_.release();
    weight_.release();
    fetched_.clear();
    gpu_ = -1;  // until all is there
  }
  const CurrentContext current(context_of(gpu));
  stream_.emplace();
  back_.emplace();
  entered_.emplace();
  done_.emplace();
  returned_.emplace();
  for (size_t i = 0; i < kAhead; ++i) fetched_.emplace_back();
  weight_.at_least(sizeof(float));
  gpu_ = gpu;
}

GpuCommunicator::PeerInfo GpuCommunicator::peer_info(const NcclNeeds& needs, int gpu) const {
  PeerInfo mine{};
  try {
    const int here = gpu_or_mine(gpu < 0 ? std::nullopt : std::optional<int>(gpu));
    int device = 0;
    EASYDDL_CUDA(DeviceGet, &device, here);
    EASYDDL_CUDA(DeviceGetUuid, &mine.uuid, device);
    EASYDDL_CUDA(DeviceGetPCIBusId, mine.bus.data(), static_cast<int>(mine.bus.size()), device);
    context_of(here);
    mine.is_new_here = here != gpu_ ? 1 : 0;
    mine.lacks_world = world_ == nullptr ? 1 : 0;
    mine.lacks_host = hosts_are_connected_ ? 0 : 1;
    store(mine.machine, machine());
    store(mine.host_id, environment_variable("NCCL_HOSTID"));
    if (!needs.nccl()) return mine;
    mine.version = nccl().version;
    mine.may_share_gpu =
        mine.version >= kSharesGpus && environment_variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
            ? 1
            : 0;
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  return mine;
}

void GpuCommunicator::compare(const std::vector<PeerInfo>& all, const NcclNeeds& needs) const {
  std::string text;
  size_t others = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    if (text.empty()) {
      text =
          topology_.capitalized_name_of(rank) + " cannot exchange gradients on its GPU: " + failure;
    } else {
      ++others;
    }
  }
  if (others > 0) text += " (So say " + std::to_string(others) + " more rank(s).)";
  if (!text.empty()) throw Error(text);
  if (!needs.nccl()) return;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version == all[0].version) continue;
    throw Error("The ranks have different versions of NCCL: " + topology_.capitalized_name_of(0) +
                " has " + nccl_version_text(all[0].version) + ", " +
                topology_.capitalized_name_of(rank) + " has " +
                nccl_version_text(all[rank].version) + ". Install the same everywhere.");
  }
  refuse_shared_gpus(all);
}

// NCCL refuses a GPU that two ranks of a host share, in words that name neither, unless it is told
// to bear it, or that these are two hosts. It goes by the GPU's place on the bus: two instances of
// one GPU (MIG) are one to it.
void GpuCommunicator::refuse_shared_gpus(const std::vector<PeerInfo>& all) const {
  for (size_t b = 1; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!all[a].is_on_gpu_of(all[b])) continue;
      const bool are_instances = std::memcmp(&all[a].uuid, &all[b].uuid, sizeof(CudaUuid)) != 0;
      const std::string text = topology_.capitalized_name_of(a) + " and " +
                               topology_.capitalized_name_of(b) + " share one GPU" +
                               (are_instances ? ", of which each has an instance (MIG)" : "");
      const bool is_allowed = (all[a].may_share_gpu != 0 && all[b].may_share_gpu != 0) ||
                              all[a].host_id != all[b].host_id;
      if (!is_allowed) {
        throw Error(text +
                    ", which NCCL refuses. Start as many ranks on a host as it has GPUs, each of "
                    "which sees its own. For a trial, NCCL 2.30 and later bear it with "
                    "NCCL_MULTI_RANK_GPU_ENABLE=1, earlier ones with an NCCL_HOSTID of each "
                    "rank's own, and EASYDDL_GPU=host does without NCCL. This is NCCL " +
                    nccl_version_text(all[a].version) + ".");
      }
      if (gpu_ < 0 && topology_.rank == 0)
        write_line("easyddl: note: " + text + ": both are slow.");
      return;
    }
  }
}

// Only where a communicator is missing: each id starts a thread of NCCL's, which never ends.
std::vector<GpuCommunicator::NcclIds> GpuCommunicator::make_ids(Communicator& communicator,
                                                                const NcclNeeds& missing) const {
  NcclIds mine{};
  try {
    if (missing.world && topology_.rank == 0) mine.world = NcclLevel::new_id();
    if (missing.host && topology_.local_rank == 0) mine.host = NcclLevel::new_id();
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  std::vector<NcclIds> all(static_cast<size_t>(topology_.size));
  communicator.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                          Fingerprint("the communicators of NCCL"));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    throw Error(topology_.capitalized_name_of(rank) +
                " cannot exchange gradients on its GPU: " + failure);
  }
  return all;
}

void GpuCommunicator::connect(Communicator& communicator, const NcclNeeds& missing) {
  if (!missing.nccl()) return;
  const std::vector<NcclIds> ids = make_ids(communicator, missing);
  const auto& hosts = topology_.node_of;
  const auto first_of_host = static_cast<size_t>(
      std::find(hosts.begin(), hosts.end(), topology_.node_rank) - hosts.begin());
  const auto make = [&](std::unique_ptr<NcclLevel>& communicator, const NcclId& id, int size,
                        int rank, const Idle& idle) {
    auto made = std::make_unique<NcclLevel>(id, size, rank, idle);
    const std::lock_guard<std::mutex> lock(communicators_mutex_);
    communicator = std::move(made);
  };
  const Fingerprint fingerprint("the connection of GPUs by NCCL");
  communicator.take_part("connect GPUs", 0, fingerprint, [&](const Idle& idle) {
    if (missing.world) make(world_, ids[0].world, topology_.size, topology_.rank, idle);
    if (missing.host && topology_.local_size > 1) {
      make(host_, ids[first_of_host].host, topology_.local_size, topology_.local_rank, idle);
    }
  });
  hosts_are_connected_ = hosts_are_connected_ || missing.host;
}

void GpuCommunicator::warm_up(Communicator& communicator, const std::vector<GpuLoad>& loads) {
  size_t most = 0, most_pinned = 0;
  for (const GpuLoad& load : loads) {
    const size_t padded =
        shard_bytes(load.total(), load.dtype) * static_cast<size_t>(gpu_topology_.leaders);
    most = std::max(most, padded);
    if (algorithm_of(load) != GpuAlgorithm::nccl) most_pinned = std::max(most_pinned, padded);
  }
  watch_.drain();  // what is under way uses the memory that there is
  scratch_.at_least(most);
  if (most_pinned > 0) pinned_.at_least(most_pinned);
  const Fingerprint fingerprint("the rehearsal of an exchange on GPUs");
  communicator.take_part("rehearse on GPUs", 0, fingerprint, [&](const Idle& idle) {
    for (const GpuLoad& load : loads) {
      if (algorithm_of(load) == GpuAlgorithm::host) continue;
      reduce(communicator, zeros(load.bytes), load.dtype, algorithm_of(load), load.reduction, idle);
    }
    wait(idle);
  });
}

std::vector<Segment> GpuCommunicator::zeros(const std::vector<size_t>& bytes) {
  const size_t total = sum(bytes);
  uint8_t* data = scratch_.at_least(total);
  if (total > 0) EASYDDL_CUDA(MemsetD8Async, address(data), 0, total, stream());
  std::vector<Segment> arrays;
  for (size_t each : bytes) {
    arrays.push_back({data, data, each});
    data += each;
  }
  return arrays;
}

void GpuCommunicator::check() {
  const std::lock_guard<std::mutex> lock(communicators_mutex_);
  if (world_ != nullptr) world_->check();
  if (host_ != nullptr) host_->check();
}

void GpuCommunicator::poll_gpu(const std::function<bool()>& ready, const Idle& idle) {
  poll(ready, topology_.cores_are_shared, [&] {
    check();
    idle();
  });
}

void GpuCommunicator::wait(const Idle& idle) {
  const Span span("wait for the GPU");
  done_->record(stream());
  poll_gpu([this] { return done_->has_come(); }, idle);
}

void GpuCommunicator::follow(CudaStream framework) {
  entered_->record(framework);
  entered_->make_stream_wait(stream());
}

// The host cannot be late for anybody here but its own GPU, which the watch has an eye on.
float GpuCommunicator::read(const float* weight, CudaStream framework) {
  const Span span("wait for the weight");
  auto* const here = reinterpret_cast<float*>(weight_.data());
  EASYDDL_CUDA(MemcpyDtoHAsync, here, address(weight), sizeof(float), framework);
  entered_->record(framework);
  poll([this] { return entered_->has_come(); }, true, [] {});
  return *here;
}

void GpuCommunicator::reduce(Communicator& communicator, const std::vector<Segment>& arrays,
                             DType dtype, GpuAlgorithm algorithm, const Reduction& reduction,
                             const Idle& idle) {
  if (gpu_topology_.ranks == 1) {
    for (const Segment& array : arrays) {
      if (array.in == array.out || array.bytes == 0) continue;
      EASYDDL_CUDA(MemcpyDtoDAsync, address(array.out), address(array.in), array.bytes, stream());
    }
  } else if (algorithm == GpuAlgorithm::nccl) {
    world_->allreduce(arrays, dtype, reduction, stream(), idle);
  } else {
    reduce_in_levels(communicator, arrays, dtype, reduction, idle);
  }
}

// Shards are equally long, as NCCL demands: the last is padded.
size_t GpuCommunicator::shard_bytes(size_t bytes, DType dtype) const {
  const size_t owners = static_cast<size_t>(gpu_topology_.leaders), count = bytes / size_of(dtype);
  return (count + owners - 1) / owners * size_of(dtype);
}

// Reduce-scatter in the host, the shards across the hosts, and all-gather in the host.
void GpuCommunicator::reduce_in_levels(Communicator& communicator,
                                       const std::vector<Segment>& arrays, DType dtype,
                                       const Reduction& reduction, const Idle& idle) {
  const size_t each = shard_bytes(total_bytes(arrays), dtype);
  uint8_t* data = scratch_.at_least(each * static_cast<size_t>(gpu_topology_.leaders));
  uint8_t* at = data;
  for (const Segment& array : arrays) {
    if (array.in != at && array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoDAsync, address(at), address(array.in), array.bytes, stream());
    }
    at += array.bytes;
  }
  const size_t count = each / size_of(dtype);
  if (host_ != nullptr) {
    host_->reduce_shards(data, count, gpu_topology_.leaders, dtype, reduction, stream(), idle);
  }
  if (topology_.local_rank < gpu_topology_.leaders) {
    reduce_across_hosts(communicator, data + static_cast<size_t>(topology_.local_rank) * each, each,
                        dtype, reduction, idle);
  }
  if (host_ != nullptr) {
    host_->gather_shards(data, count, gpu_topology_.leaders, dtype, stream(), idle);
  }
  at = data;
  for (const Segment& array : arrays) {
    if (array.out != at && array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoDAsync, address(array.out), address(at), array.bytes, stream());
    }
    at += array.bytes;
  }
}

void GpuCommunicator::reduce_across_hosts(Communicator& communicator, uint8_t* shard, size_t bytes,
                                          DType dtype, const Reduction& reduction,
                                          const Idle& idle) {
  uint8_t* const here = pinned_.at_least(bytes);
  const size_t chunks = (bytes + kChunk - 1) / kChunk, unit = size_of(dtype);
  // What of a chunk goes through the host's memory: all, if MPI does not take it from the GPU.
  const auto part = [&](size_t chunk) -> std::pair<size_t, size_t> {
    const size_t begin = chunk * kChunk, length = std::min(kChunk, bytes - begin);
    if (!mpi_takes_gpu_memory_) return {begin, length};
    const InterHostOperation::Shard mine = communicator.part_of(length / unit);
    return {begin + mine.begin * unit, mine.count * unit};
  };
  const auto fetch = [&](size_t chunk) {
    if (chunk >= chunks) return;
    const auto [begin, length] = part(chunk);
    if (length > 0) {
      EASYDDL_CUDA(MemcpyDtoHAsync, here + begin, address(shard + begin), length, stream());
    }
    fetched_[chunk % kAhead].record(stream());
  };
  for (size_t chunk = 0; chunk < kAhead; ++chunk) fetch(chunk);
  const auto has_come = [&](size_t chunk) {
    if (!fetched_[chunk % kAhead].has_come()) return false;
    fetch(chunk + kAhead);
    return true;
  };
  const auto on_reduced = [&](size_t chunk) {
    const auto [begin, length] = part(chunk);
    if (length == 0) return;
    EASYDDL_CUDA(MemcpyHtoDAsync, address(shard + begin), here + begin, length, back_->get());
  };
  const auto wait = [&](const std::function<bool()>& ready) { poll_gpu(ready, idle); };
  // Where a host has one rank, NCCL has multiplied nothing there.
  const bool is_scaled = reduction.is_scaled && gpu_topology_.leaders == 1;
  communicator.reduce_across_hosts(
      {here, mpi_takes_gpu_memory_ ? shard : nullptr, bytes, kChunk, dtype, reduction.op, is_scaled,
       host_ == nullptr ? reduction.factor : 1, has_come, on_reduced, wait});
  returned_->record(back_->get());
  returned_->make_stream_wait(stream());
}

uint8_t* GpuCommunicator::fetch(const std::vector<Segment>& arrays, const Idle& idle) {
  uint8_t* const data = pinned_.at_least(total_bytes(arrays));
  uint8_t* at = data;
  for (const Segment& array : arrays) {
    if (array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoHAsync, at, address(array.in), array.bytes, stream());
    }
    at += array.bytes;
  }
  wait(idle);
  return data;
}

void GpuCommunicator::bring_back(const std::vector<Segment>& arrays) {
  const uint8_t* at = pinned_.data();
  for (const Segment& array : arrays) {
    if (array.bytes > 0) {
      EASYDDL_CUDA(MemcpyHtoDAsync, address(array.out), at, array.bytes, stream());
    }
    at += array.bytes;
  }
}

}  // namespace easyddl
