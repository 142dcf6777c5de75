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

GpuPlaces gpu_places(const Layout& layout) {
  std::vector<int> on_host(static_cast<size_t>(layout.num_nodes), 0);
  for (int host : layout.node_of) ++on_host[static_cast<size_t>(host)];
  return {layout.size, layout.num_nodes, *std::max_element(on_host.begin(), on_host.end()),
          layout.num_carriers};
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
struct GpuLevel::Introduction {
  std::array<char, 768> failure;  // why it cannot take part; empty if it can
  std::array<char, 64> host_id;   // NCCL_HOSTID
  std::array<char, 320> machine;
  std::array<char, 32> bus;         // the GPU's place in it
  CudaUuid uuid;                    // the GPU's, or that of its instance
  int32_t version;                  // NCCL's
  int32_t may_share_gpu;            // as NCCL has been told
  int32_t is_new_here;              // it has not been set up, or for another GPU
  int32_t lacks_world, lacks_host;  // it has not these communicators

  bool is_on_gpu_of(const Introduction& other) const {
    const bool is_same = std::memcmp(&uuid, &other.uuid, sizeof uuid) == 0;
    return is_same || (machine == other.machine && bus == other.bus);
  }
};

// Of communicators that this rank leads, and why it cannot make them.
struct GpuLevel::Ids {
  std::array<char, 768> failure;
  NcclId world, host;
};

struct GpuLevel::Needs {
  bool world = false, host = false;  // communicators
  bool nccl() const { return world || host; }
};

size_t GpuLoad::total() const { return sum(bytes); }

GpuLevel::GpuLevel(World& world)
    : layout_(world.layout()),
      places_(gpu_places(world.layout())),
      wish_(world.gpu_way()),
      mpi_takes_gpu_memory_(world.cuda_aware_mpi()),
      watch_(world, [this] { check(); }) {}

GpuLevel& GpuLevel::of(World& world) {
  return world.shared<GpuLevel>([&] {
    auto made = std::make_unique<GpuLevel>(world);
    world.add_to_finish([level = made.get()] { level->watch().drain(); });
    return made;
  });
}

GpuLevel::~GpuLevel() {
  if (gpu_ < 0) return;
  watch_.drain();
  cuda().CtxSetCurrent(context_of(gpu_));
}

GpuWay GpuLevel::way_of(const GpuLoad& load) const {
  if (places_.ranks > 1 && !NcclLevel::supports(load.dtype, load.reduction)) return GpuWay::host;
  const GpuWay way = wish_.value_or(cheapest_gpu_way(load.total(), places_));
  return way == GpuWay::hierarchical && places_.hosts == 1 ? GpuWay::nccl : way;
}

GpuLevel::Needs GpuLevel::needs_of(const std::vector<GpuLoad>& loads) const {
  Needs needs;
  for (const GpuLoad& load : loads) {
    const GpuWay way = way_of(load);
    needs.world = needs.world || (way == GpuWay::nccl && places_.ranks > 1);
    needs.host = needs.host || (way == GpuWay::hierarchical && places_.most_on_a_host > 1);
  }
  return needs;
}

int GpuLevel::gpu_or_mine(std::optional<int> gpu) const {
  return gpu.value_or(gpu_ >= 0 ? gpu_ : layout_.local_rank % count_gpus());
}

void GpuLevel::prepare(Channel& channel, const std::vector<GpuLoad>& loads,
                       std::optional<int> gpu) {
  const Needs needs = needs_of(loads);
  const Introduction mine = introduce(needs, gpu.value_or(-1));
  std::vector<Introduction> all(static_cast<size_t>(layout_.size));
  channel.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                     Signature("how the ranks exchange gradients on GPUs"));
  compare(all, needs);
  // All ranks do so together, since communicators go by GPUs.
  const bool anew = std::any_of(all.begin(), all.end(),
                                [](const Introduction& each) { return each.is_new_here != 0; });
  if (anew) set_up(gpu_or_mine(gpu));
  const CurrentContext current(context_of(gpu_));
  // Where a rank has failed half-way, others may have a communicator that it has not.
  const auto lacks = [&](auto member) {
    return anew || std::any_of(all.begin(), all.end(),
                               [&](const Introduction& each) { return each.*member != 0; });
  };
  connect(channel, {needs.world && lacks(&Introduction::lacks_world),
                    needs.host && lacks(&Introduction::lacks_host)});
  rehearse(channel, loads);
}

void GpuLevel::set_up(int gpu) {
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

GpuLevel::Introduction GpuLevel::introduce(const Needs& needs, int gpu) const {
  Introduction mine{};
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

void GpuLevel::compare(const std::vector<Introduction>& all, const Needs& needs) const {
  std::string text;
  size_t others = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    if (text.empty()) {
      text =
          layout_.capitalized_name_of(rank) + " cannot exchange gradients on its GPU: " + failure;
    } else {
      ++others;
    }
  }
  if (others > 0) text += " (So say " + std::to_string(others) + " more rank(s).)";
  if (!text.empty()) throw Error(text);
  if (!needs.nccl()) return;
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank].version == all[0].version) continue;
    throw Error("The ranks have different versions of NCCL: " + layout_.capitalized_name_of(0) +
                " has " + nccl_version_text(all[0].version) + ", " +
                layout_.capitalized_name_of(rank) + " has " + nccl_version_text(all[rank].version) +
                ". Install the same everywhere.");
  }
  refuse_shared_gpus(all);
}

// NCCL refuses a GPU that two ranks of a host share, in words that name neither, unless it is told
// to bear it, or that these are two hosts. It goes by the GPU's place on the bus: two instances of
// one GPU (MIG) are one to it.
void GpuLevel::refuse_shared_gpus(const std::vector<Introduction>& all) const {
  for (size_t b = 1; b < all.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (!all[a].is_on_gpu_of(all[b])) continue;
      const bool are_instances = std::memcmp(&all[a].uuid, &all[b].uuid, sizeof(CudaUuid)) != 0;
      const std::string text = layout_.capitalized_name_of(a) + " and " +
                               layout_.capitalized_name_of(b) + " share one GPU" +
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
      if (gpu_ < 0 && layout_.rank == 0) write_line("easyddl: note: " + text + ": both are slow.");
      return;
    }
  }
}

// Only where a communicator is missing: each id starts a thread of NCCL's, which never ends.
std::vector<GpuLevel::Ids> GpuLevel::make_ids(Channel& channel, const Needs& missing) const {
  Ids mine{};
  try {
    if (missing.world && layout_.rank == 0) mine.world = NcclLevel::new_id();
    if (missing.host && layout_.local_rank == 0) mine.host = NcclLevel::new_id();
  } catch (const std::exception& error) {
    store(mine.failure, error.what());
  }
  std::vector<Ids> all(static_cast<size_t>(layout_.size));
  channel.all_gather(&mine, all.data(), std::vector<int64_t>(all.size(), 1), sizeof mine,
                     Signature("the communicators of NCCL"));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::string failure = all[rank].failure.data();
    if (failure.empty()) continue;
    throw Error(layout_.capitalized_name_of(rank) +
                " cannot exchange gradients on its GPU: " + failure);
  }
  return all;
}

void GpuLevel::connect(Channel& channel, const Needs& missing) {
  if (!missing.nccl()) return;
  const std::vector<Ids> ids = make_ids(channel, missing);
  const auto& hosts = layout_.node_of;
  const auto first_of_host =
      static_cast<size_t>(std::find(hosts.begin(), hosts.end(), layout_.node_rank) - hosts.begin());
  const auto make = [&](std::unique_ptr<NcclLevel>& communicator, const NcclId& id, int size,
                        int rank, const Idle& idle) {
    auto made = std::make_unique<NcclLevel>(id, size, rank, idle);
    const std::lock_guard<std::mutex> lock(communicators_mutex_);
    communicator = std::move(made);
  };
  const Signature signature("the connection of GPUs by NCCL");
  channel.take_part("connect GPUs", 0, signature, [&](const Idle& idle) {
    if (missing.world) make(world_, ids[0].world, layout_.size, layout_.rank, idle);
    if (missing.host && layout_.local_size > 1) {
      make(host_, ids[first_of_host].host, layout_.local_size, layout_.local_rank, idle);
    }
  });
  hosts_are_connected_ = hosts_are_connected_ || missing.host;
}

void GpuLevel::rehearse(Channel& channel, const std::vector<GpuLoad>& loads) {
  size_t most = 0, most_pinned = 0;
  for (const GpuLoad& load : loads) {
    const size_t padded =
        shard_bytes(load.total(), load.dtype) * static_cast<size_t>(places_.carriers);
    most = std::max(most, padded);
    if (way_of(load) != GpuWay::nccl) most_pinned = std::max(most_pinned, padded);
  }
  watch_.drain();  // what is under way uses the memory that there is
  scratch_.at_least(most);
  if (most_pinned > 0) pinned_.at_least(most_pinned);
  const Signature signature("the rehearsal of an exchange on GPUs");
  channel.take_part("rehearse on GPUs", 0, signature, [&](const Idle& idle) {
    for (const GpuLoad& load : loads) {
      if (way_of(load) == GpuWay::host) continue;
      reduce(channel, zeros(load.bytes), load.dtype, way_of(load), load.reduction, idle);
    }
    wait(idle);
  });
}

std::vector<Piece> GpuLevel::zeros(const std::vector<size_t>& bytes) {
  const size_t total = sum(bytes);
  uint8_t* data = scratch_.at_least(total);
  if (total > 0) EASYDDL_CUDA(MemsetD8Async, address(data), 0, total, stream());
  std::vector<Piece> arrays;
  for (size_t each : bytes) {
    arrays.push_back({data, data, each});
    data += each;
  }
  return arrays;
}

void GpuLevel::check() {
  const std::lock_guard<std::mutex> lock(communicators_mutex_);
  if (world_ != nullptr) world_->check();
  if (host_ != nullptr) host_->check();
}

void GpuLevel::poll_gpu(const std::function<bool()>& ready, const Idle& idle) {
  poll(ready, layout_.cores_are_shared, [&] {
    check();
    idle();
  });
}

void GpuLevel::wait(const Idle& idle) {
  const Span span("wait for the GPU");
  done_->record(stream());
  poll_gpu([this] { return done_->has_come(); }, idle);
}

void GpuLevel::follow(CudaStream framework) {
  entered_->record(framework);
  entered_->hold_up(stream());
}

// The host cannot be late for anybody here but its own GPU, which the watch has an eye on.
float GpuLevel::read(const float* weight, CudaStream framework) {
  const Span span("wait for the weight");
  auto* const here = reinterpret_cast<float*>(weight_.data());
  EASYDDL_CUDA(MemcpyDtoHAsync, here, address(weight), sizeof(float), framework);
  entered_->record(framework);
  poll([this] { return entered_->has_come(); }, true, [] {});
  return *here;
}

void GpuLevel::reduce(Channel& channel, const std::vector<Piece>& arrays, DType dtype, GpuWay way,
                      const Reduction& reduction, const Idle& idle) {
  if (places_.ranks == 1) {
    for (const Piece& array : arrays) {
      if (array.in == array.out || array.bytes == 0) continue;
      EASYDDL_CUDA(MemcpyDtoDAsync, address(array.out), address(array.in), array.bytes, stream());
    }
  } else if (way == GpuWay::nccl) {
    world_->allreduce(arrays, dtype, reduction, stream(), idle);
  } else {
    reduce_in_levels(channel, arrays, dtype, reduction, idle);
  }
}

// Shards are equally long, as NCCL demands: the last is padded.
size_t GpuLevel::shard_bytes(size_t bytes, DType dtype) const {
  const size_t owners = static_cast<size_t>(places_.carriers), count = bytes / size_of(dtype);
  return (count + owners - 1) / owners * size_of(dtype);
}

// Reduce-scatter in the host, the shards across the hosts, and all-gather in the host.
void GpuLevel::reduce_in_levels(Channel& channel, const std::vector<Piece>& arrays, DType dtype,
                                const Reduction& reduction, const Idle& idle) {
  const size_t each = shard_bytes(total_bytes(arrays), dtype);
  uint8_t* data = scratch_.at_least(each * static_cast<size_t>(places_.carriers));
  uint8_t* at = data;
  for (const Piece& array : arrays) {
    if (array.in != at && array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoDAsync, address(at), address(array.in), array.bytes, stream());
    }
    at += array.bytes;
  }
  const size_t count = each / size_of(dtype);
  if (host_ != nullptr) {
    host_->reduce_shards(data, count, places_.carriers, dtype, reduction, stream(), idle);
  }
  if (layout_.local_rank < places_.carriers) {
    cross(channel, data + static_cast<size_t>(layout_.local_rank) * each, each, dtype, reduction,
          idle);
  }
  if (host_ != nullptr) {
    host_->gather_shards(data, count, places_.carriers, dtype, stream(), idle);
  }
  at = data;
  for (const Piece& array : arrays) {
    if (array.out != at && array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoDAsync, address(array.out), address(at), array.bytes, stream());
    }
    at += array.bytes;
  }
}

void GpuLevel::cross(Channel& channel, uint8_t* shard, size_t bytes, DType dtype,
                     const Reduction& reduction, const Idle& idle) {
  uint8_t* const here = pinned_.at_least(bytes);
  const size_t chunks = (bytes + kChunk - 1) / kChunk, unit = size_of(dtype);
  // What of a chunk goes through the host's memory: all, if MPI does not take it from the GPU.
  const auto part = [&](size_t chunk) -> std::pair<size_t, size_t> {
    const size_t begin = chunk * kChunk, length = std::min(kChunk, bytes - begin);
    if (!mpi_takes_gpu_memory_) return {begin, length};
    const Journey::Shard mine = channel.part_of(length / unit);
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
  const auto has_crossed = [&](size_t chunk) {
    const auto [begin, length] = part(chunk);
    if (length == 0) return;
    EASYDDL_CUDA(MemcpyHtoDAsync, address(shard + begin), here + begin, length, back_->get());
  };
  const auto wait = [&](const std::function<bool()>& ready) { poll_gpu(ready, idle); };
  // Where a host has one rank, NCCL has multiplied nothing there.
  const bool is_scaled = reduction.is_scaled && places_.carriers == 1;
  channel.cross_hosts({here, mpi_takes_gpu_memory_ ? shard : nullptr, bytes, kChunk, dtype,
                       reduction.op, is_scaled, host_ == nullptr ? reduction.factor : 1, has_come,
                       has_crossed, wait});
  returned_->record(back_->get());
  returned_->hold_up(stream());
}

uint8_t* GpuLevel::fetch(const std::vector<Piece>& arrays, const Idle& idle) {
  uint8_t* const data = pinned_.at_least(total_bytes(arrays));
  uint8_t* at = data;
  for (const Piece& array : arrays) {
    if (array.bytes > 0) {
      EASYDDL_CUDA(MemcpyDtoHAsync, at, address(array.in), array.bytes, stream());
    }
    at += array.bytes;
  }
  wait(idle);
  return data;
}

void GpuLevel::bring_back(const std::vector<Piece>& arrays) {
  const uint8_t* at = pinned_.data();
  for (const Piece& array : arrays) {
    if (array.bytes > 0) {
      EASYDDL_CUDA(MemcpyHtoDAsync, address(array.out), at, array.bytes, stream());
    }
    at += array.bytes;
  }
}

}  // namespace easyddl
