#include "collectives/gpu_communicator.h"

#include <algorithm>
#include <utility>

#include "arrays/arithmetic.h"
#include "collectives/communicator.h"
#include "common/check.h"
#include "profiling/trace.h"
#include "runtime/world.h"

namespace easyddl {
namespace {

// What crosses the hosts goes in chunks, so that copies and messages overlap.
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

}  // namespace

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
