#include "collectives/gpu_communicator.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/all_gather.h"
#include "collectives/inter_host_shard.h"
#include "common/check.h"
#include "common/console.h"
#include "common/environment.h"
#include "common/text.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// A shard is reduced across hosts in chunks, so that copies and messages overlap.
constexpr size_t kChunk = 1 << 20;

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

// Queues a copy on the GPU, unless there is nothing to copy.
void copy_on_gpu(uint8_t* to, const uint8_t* from, size_t bytes, CudaStream stream) {
  if (to == from || bytes == 0) return;
  EASYDDL_CUDA(MemcpyDtoDAsync, address(to), address(from), bytes, stream);
}

int count_gpus() {
  int count = 0;
  EASYDDL_CUDA(DeviceGetCount, &count);
  if (count == 0) throw Error("CUDA finds no GPU.");
  return count;
}

}  // namespace

size_t GpuLoad::total() const { return sum(bytes); }

GpuCommunicator::GpuCommunicator(World& world)
    : topology_(world.topology()),
      gpu_topology_(gpu_topology_of(world.topology())),
      requested_algorithm_(world.gpu_algorithm()),
      mpi_takes_gpu_memory_(world.cuda_aware_mpi()),
      nccl_(topology_),
      monitor_(world, [this] { nccl_.check(); }) {}

GpuCommunicator::~GpuCommunicator() {
  if (gpu_ < 0) return;
  monitor_.drain();
  cuda().CtxSetCurrent(context_of(gpu_));
}

GpuAlgorithm GpuCommunicator::algorithm_of(const GpuLoad& load) const {
  if (gpu_topology_.ranks > 1 && !NcclLevel::supports(load.dtype)) return GpuAlgorithm::host;
  GpuAlgorithm algorithm =
      requested_algorithm_.value_or(cheapest_gpu_algorithm(load.total(), gpu_topology_));
  if (gpu_topology_.hosts == 1)
    return algorithm == GpuAlgorithm::hierarchical ? GpuAlgorithm::nccl : algorithm;
  if (load.wire && algorithm == GpuAlgorithm::nccl) {
    if (requested_algorithm_) {
      throw Error(
          "NCCL sends gradients to other hosts as they are. Set EASYDDL_GPU to hierarchical "
          "or host, or leave out wire_dtype.");
    }
    return GpuAlgorithm::hierarchical;
  }
  return algorithm;
}

NcclNeeds GpuCommunicator::needs_of(const std::vector<GpuLoad>& loads) const {
  NcclNeeds needs;
  for (const GpuLoad& load : loads) {
    const GpuAlgorithm algorithm = algorithm_of(load);
    needs.world = needs.world || (algorithm == GpuAlgorithm::nccl && gpu_topology_.ranks > 1);
    needs.host =
        needs.host || (algorithm == GpuAlgorithm::hierarchical && gpu_topology_.most_on_a_host > 1);
  }
  return needs;
}

int GpuCommunicator::gpu_or_default(std::optional<int> gpu) const {
  return gpu.value_or(gpu_ >= 0 ? gpu_ : topology_.local_rank % count_gpus());
}

void GpuCommunicator::prepare(Communicator& communicator, const std::vector<GpuLoad>& loads,
                              std::optional<int> gpu) {
  const NcclNeeds needs = needs_of(loads);
  const GpuPeerInfo mine = peer_info(needs, gpu);
  const std::vector<GpuPeerInfo> all =
      all_gather(communicator, mine, Fingerprint("the comparison of the ranks' GPUs"));
  const std::string note = require_compatible(all, topology_, needs.any());
  if (!note.empty() && gpu_ < 0 && topology_.rank == 0) write_line("easyddl: note: " + note);
  // If one rank sets up a new GPU, all ranks do, because NCCL's communicators are bound to GPUs.
  const bool anew = std::any_of(all.begin(), all.end(),
                                [](const GpuPeerInfo& each) { return each.is_new_gpu != 0; });
  if (anew) set_up(gpu_or_default(gpu));
  const CurrentContext current(context_of(gpu_));
  // After a failure of one rank, other ranks may have a communicator that it lacks.
  const auto lacks = [&](auto member) {
    return anew || std::any_of(all.begin(), all.end(),
                               [&](const GpuPeerInfo& each) { return each.*member != 0; });
  };
  nccl_.connect(communicator, {needs.world && lacks(&GpuPeerInfo::lacks_world),
                               needs.host && lacks(&GpuPeerInfo::lacks_host)});
  warm_up(communicator, loads);
}

void GpuCommunicator::set_up(int gpu) {
  monitor_.drain();
  monitor_.destroy_events();
  if (gpu_ >= 0) {
    const CurrentContext before(context_of(gpu_));
    nccl_.disconnect();
    scratch_.release();
    pinned_.release();
    weight_.release();
    fetched_.clear();
    gpu_ = -1;  // until the setup below is complete
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

GpuPeerInfo GpuCommunicator::peer_info(const NcclNeeds& needs, std::optional<int> gpu) const {
  GpuPeerInfo mine{};
  try {
    const int here = gpu_or_default(gpu);
    int device = 0;
    EASYDDL_CUDA(DeviceGet, &device, here);
    EASYDDL_CUDA(DeviceGetUuid, &mine.uuid, device);
    EASYDDL_CUDA(DeviceGetPCIBusId, mine.bus.data(), static_cast<int>(mine.bus.size()), device);
    context_of(here);
    mine.is_new_gpu = here != gpu_ ? 1 : 0;
    mine.lacks_world = nccl_.missing().world ? 1 : 0;
    mine.lacks_host = nccl_.missing().host ? 1 : 0;
    store(mine.machine, machine_name());
    store(mine.host_id, environment_variable("NCCL_HOSTID"));
    if (!needs.any()) return mine;
    mine.version = nccl().version;
    mine.may_share_gpu = mine.version >= kFirstNcclWithSharedGpus &&
                                 environment_variable("NCCL_MULTI_RANK_GPU_ENABLE") == "1"
                             ? 1
                             : 0;
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  return mine;
}

// Reduces zeros once, so that no later step allocates memory or makes a connection.
void GpuCommunicator::warm_up(Communicator& communicator, const std::vector<GpuLoad>& loads) {
  size_t most = 0, most_pinned = 0;
  for (const GpuLoad& load : loads) {
    const size_t padded =
        shard_bytes(load.total(), load.dtype) * static_cast<size_t>(gpu_topology_.leaders);
    most = std::max(most, padded);
    if (algorithm_of(load) != GpuAlgorithm::nccl) most_pinned = std::max(most_pinned, padded);
  }
  monitor_.drain();  // work in progress uses the memory that is replaced
  scratch_.at_least(most);
  if (most_pinned > 0) pinned_.at_least(most_pinned);
  const Fingerprint fingerprint("the warm-up of a reducer on GPUs");
  CollectiveCall call{"warm up on GPUs", 0, fingerprint};
  call.is_external = true;
  communicator.run(call, [&](CollectiveContext& context) {
    for (const GpuLoad& load : loads) {
      if (algorithm_of(load) == GpuAlgorithm::host) continue;
      reduce(context, zeros(load.bytes), load, 1);
    }
    wait(context.idle());
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

void GpuCommunicator::poll_gpu(const std::function<bool()>& ready, const Idle& idle) {
  poll(ready, topology_.cores_are_shared, [&] {
    nccl_.check();
    idle();
  });
}

void GpuCommunicator::wait(const Idle& idle) {
  const Span span("wait for the GPU");
  done_->record(stream());
  poll_gpu([this] { return done_->is_reached(); }, idle);
}

void GpuCommunicator::wait_for_stream(CudaStream framework) {
  entered_->record(framework);
  entered_->make_stream_wait(stream());
}

// Only this rank's GPU can delay this wait, and the completion monitor already watches it.
float GpuCommunicator::read_weight(const float* weight, CudaStream framework) {
  const Span span("wait for the weight");
  auto* const here = reinterpret_cast<float*>(weight_.data());
  EASYDDL_CUDA(MemcpyDtoHAsync, here, address(weight), sizeof(float), framework);
  entered_->record(framework);
  poll([this] { return entered_->is_reached(); }, true, [] {});
  return *here;
}

void GpuCommunicator::reduce(CollectiveContext& context, const std::vector<Segment>& arrays,
                             const GpuLoad& load, double factor) {
  if (gpu_topology_.ranks == 1) {
    for (const Segment& array : arrays) copy_on_gpu(array.out, array.in, array.bytes, stream());
  } else if (algorithm_of(load) == GpuAlgorithm::nccl) {
    nccl_.world()->allreduce(arrays, load.dtype, factor, stream(), context.idle());
  } else {
    reduce_in_levels(context, arrays, load, factor);
  }
}

// Returns the length of a shard. NCCL needs equal shards, so the last one is padded.
size_t GpuCommunicator::shard_bytes(size_t bytes, DType dtype) const {
  const size_t owners = static_cast<size_t>(gpu_topology_.leaders), count = bytes / size_of(dtype);
  return (count + owners - 1) / owners * size_of(dtype);
}

// Reduce-scatter within the host, allreduce of each shard across hosts, all-gather within the host.
void GpuCommunicator::reduce_in_levels(CollectiveContext& context,
                                       const std::vector<Segment>& arrays, const GpuLoad& load,
                                       double factor) {
  NcclLevel* const host = nccl_.host();
  const DType dtype = load.dtype;
  const size_t each = shard_bytes(total_bytes(arrays), dtype);
  const size_t padded = each * static_cast<size_t>(gpu_topology_.leaders);
  uint8_t* data = scratch_.at_least(padded);
  uint8_t* at = data;
  for (const Segment& array : arrays) {
    copy_on_gpu(at, array.in, array.bytes, stream());
    at += array.bytes;
  }
  // What another bucket has left in the padding must not choose the scale of float16.
  const size_t padding = padded - static_cast<size_t>(at - data);
  if (padding > 0) EASYDDL_CUDA(MemsetD8Async, address(at), 0, padding, stream());
  const size_t count = each / size_of(dtype);
  if (host != nullptr) {
    host->reduce_shards(data, count, gpu_topology_.leaders, dtype, factor, stream(),
                        context.idle());
  }
  if (topology_.local_rank < gpu_topology_.leaders) {
    reduce_shard_across_hosts(context, data + static_cast<size_t>(topology_.local_rank) * each,
                              each, load, factor);
  }
  if (host != nullptr) {
    host->gather_shards(data, count, gpu_topology_.leaders, dtype, stream(), context.idle());
  }
  at = data;
  for (const Segment& array : arrays) {
    copy_on_gpu(array.out, at, array.bytes, stream());
    at += array.bytes;
  }
}

// Reduces this leader's shard over all hosts, through host memory.
void GpuCommunicator::reduce_shard_across_hosts(CollectiveContext& context, uint8_t* shard,
                                                size_t bytes, const GpuLoad& load, double factor) {
  uint8_t* const here = pinned_.at_least(bytes);
  const bool from_gpu = mpi_takes_gpu_memory_ && !load.wire;
  const size_t chunks = (bytes + kChunk - 1) / kChunk, unit = size_of(load.dtype);
  // Returns the part of a chunk that is copied through host memory: all of it, unless MPI reads GPU
  // memory.
  const auto part = [&](size_t chunk) -> std::pair<size_t, size_t> {
    const size_t begin = chunk * kChunk, length = std::min(kChunk, bytes - begin);
    if (!from_gpu) return {begin, length};
    const InterHostOperation::Shard mine = context.remote().part_of(length / unit);
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
  const auto has_arrived = [&](size_t chunk) {
    if (!fetched_[chunk % kAhead].is_reached()) return false;
    fetch(chunk + kAhead);
    return true;
  };
  const auto on_reduced = [&](size_t chunk) {
    const auto [begin, length] = part(chunk);
    if (length == 0) return;
    EASYDDL_CUDA(MemcpyHtoDAsync, address(shard + begin), here + begin, length, back_->get());
  };
  const auto wait = [&](const std::function<bool()>& ready) { poll_gpu(ready, context.idle()); };
  // On a host with one rank NCCL has not multiplied by the factor.
  const bool is_scaled = gpu_topology_.leaders == 1;
  reduce_across_hosts(
      context, {here, from_gpu ? shard : nullptr, bytes, kChunk, load.dtype, load.wire, is_scaled,
                nccl_.host() == nullptr ? factor : 1, has_arrived, on_reduced, wait});
  returned_->record(back_->get());
  returned_->make_stream_wait(stream());
}

uint8_t* GpuCommunicator::copy_to_host(const std::vector<Segment>& arrays, const Idle& idle) {
  uint8_t* const data = pinned_.at_least(total_bytes(arrays));
  easyddl::copy_to_host(arrays, data, stream());
  wait(idle);
  return data;
}

void GpuCommunicator::copy_to_gpu(const std::vector<Segment>& arrays) {
  easyddl::copy_to_gpu(pinned_.data(), arrays, stream());
}

}  // namespace easyddl
