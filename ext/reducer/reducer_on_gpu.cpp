// The reducer's part for arrays that lie on GPUs.
//
// The thread that submits arrays takes the step itself, as PyTorch's DistributedDataParallel and
// Horovod do: the engine's stream waits for an event on the framework's, NCCL is queued on it, and
// the framework's stream waits for an event after that. No stream ever waits for what a thread of
// the host has still to do or to queue: streams may share a queue of the hardware, in which such a
// thing would never be reached, and calls of the driver wait for streams where nobody expects it.
// So where hosts take part in an algorithm, the thread waits for it, and then queues what comes
// back.
//
// The control word is the hosts', and goes before the data: then all ranks know whether there is a
// step to queue at all, at which position in the step order, and by what NCCL is to multiply. The
// thread waits for the others' for as long as a small allreduce takes.
#include <algorithm>
#include <array>
#include <exception>
#include <utility>

#include "common/check.h"
#include "profiling/trace.h"
#include "reducer/reducer.h"

namespace easyddl {
namespace {

int gpu_of_first(const std::vector<Segment>& arrays) {
  for (const Segment& array : arrays) {
    if (array.bytes > 0) return gpu_of(array.in);
  }
  int gpu = 0;
  EASYDDL_CUDA(CtxGetDevice, &gpu);
  return gpu;
}

}  // namespace

// While it lives, no other thread agrees on anything with the other ranks.
class Reducer::Drive {
 public:
  explicit Drive(Reducer& reducer) : reducer_(reducer) {
    std::unique_lock<std::mutex> lock(reducer_.mutex_);
    const std::string& failure = reducer_.failure_;
    ++reducer_.want_to_drive_;
    reducer_.undriven_.wait(lock, [&] { return !reducer_.is_driven_ || !failure.empty(); });
    --reducer_.want_to_drive_;
    if (!failure.empty()) throw Error(failure);
    reducer_.is_driven_ = true;
  }
  ~Drive() {
    const std::lock_guard<std::mutex> lock(reducer_.mutex_);
    reducer_.is_driven_ = false;
    reducer_.undriven_.notify_all();
    reducer_.came_.notify_one();
  }
  Drive(const Drive&) = delete;
  Drive& operator=(const Drive&) = delete;

 private:
  Reducer& reducer_;
};

std::string Reducer::submit_on_gpu(size_t first, std::vector<Segment> arrays,
                                   const float* gpu_weight, double weight, void* stream,
                                   const Done& done) {
  const int64_t handed_in = Trace::on() != nullptr ? Trace::now() : 0;
  const GpuSource there{gpu_weight, static_cast<CudaStream>(stream)};
  try {
    const Drive drive(*this);
    const int gpu = gpu_of_first(arrays);
    const CurrentContext current(context_of(gpu));
    const RelaxedCapture relaxed;
    require_on_gpu(first, arrays, gpu, there.stream);
    try {
      if (place_ == ArrayPlace::unknown) agree_on_place(ArrayPlace::gpu, gpu);
      take_on_gpu({std::move(arrays), weight, done, handed_in, {}, {}}, there);
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    }
    return "";
  } catch (const std::exception& error) {
    done(error.what());
    return error.what();
  }
}

// Other ranks may wait for this one, on the host. None waits for what it has queued on the GPU.
void Reducer::fail(const std::string& failure) {
  GpuCommunicator::of(communicator_.world()).step_order().end(owner());
  give_up(failure);
}

// Throws if no such arrays can be submitted. Nothing has been begun then.
void Reducer::require_on_gpu(size_t first, const std::vector<Segment>& arrays, int gpu,
                             CudaStream stream) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const std::string refused = refusal(first, ArrayPlace::gpu);
    if (!refused.empty()) throw Error(refused);
  }
  if (first != next_) {
    throw Error("Bucket " + std::to_string(first) + " of " + what_ +
                " was handed in where bucket " + std::to_string(next_) +
                " was to come. On GPUs buckets must come in their order.");
  }
  size_t bucket = first, count = 0;
  while (count < arrays.size() && bucket < buckets_.size())
    count += buckets_[bucket++].bytes.size();
  if (count != arrays.size()) {
    throw Error("The arrays that were handed in are not those of whole buckets of " + what_ +
                ", from bucket " + std::to_string(first) +
                " on. Received: " + std::to_string(arrays.size()) + " arrays");
  }
  if (gpu_ != nullptr && gpu_->gpu() != gpu) {
    throw Error("The arrays of " + what_ + " lie on GPU " + std::to_string(gpu) +
                ", and this rank exchanges gradients on GPU " + std::to_string(gpu_->gpu()) +
                ". Each rank must train on one.");
  }
  refuse_capture(stream);
}

GpuLoad Reducer::load_of(size_t bucket) const {
  const Reduction reduction =
      op_ == Op::mean ? Reduction{Op::sum, true, 1} : Reduction{op_, false, 1};
  return {buckets_[bucket].dtype, buckets_[bucket].bytes, reduction};
}

bool Reducer::only_queues() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (place_ != ArrayPlace::gpu) return false;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) {
    if (gpu_->algorithm_of(load_of(bucket)) != GpuAlgorithm::nccl) return false;
  }
  return true;
}

void Reducer::prepare_gpu(const std::vector<int64_t>& step_order, std::optional<int> gpu,
                          const uint64_t* claimed) {
  GpuCommunicator& level = GpuCommunicator::of(communicator_.world());
  double sum = 0;
  for (int64_t each : step_order) sum += GpuStepOrder::to_float(static_cast<uint64_t>(each));
  const auto ranks = static_cast<double>(step_order.size());
  const RelaxedCapture relaxed;
  level.step_order().begin(owner(), level.step_order().agreed(sum, ranks, claimed));
  std::vector<GpuLoad> loads;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) loads.push_back(load_of(bucket));
  try {
    level.prepare(communicator_, loads, gpu);
  } catch (...) {
    level.step_order().end(owner());
    throw;
  }
  level.step_order().end(owner());
  gpu_ = &level;
}

// A rank that has no batch claims nothing. False if no rank has one: there is no step then.
bool Reducer::begin_step_on_gpu(double weight, const uint64_t* claimed) {
  begin_step(weight, claimed != nullptr);
  constexpr size_t kLength = ControlWord::kLength;
  const ControlWord::Floats mine = mine_.to_floats();
  std::array<float, kLength + 1> floats{};
  std::copy(mine.begin(), mine.end(), floats.begin());
  if (claimed != nullptr) floats[kLength] = GpuStepOrder::to_float(*claimed);
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  communicator_.allreduce(SegmentList({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
                          Fingerprint("the control word of " + text_of_bucket()));
  ControlWord::Floats sums;
  std::copy_n(floats.begin(), kLength, sums.begin());
  const ControlWord all = ControlWord::from_floats(sums, 1);
  take_in(all);
  if (!step_has_batches_) return false;
  try {
    gpu_->step_order().begin(owner(),
                             gpu_->step_order().agreed(floats[kLength], all.active, claimed));
    gpu_->watch().begin_step();
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  return true;
}

// The arrays of whole buckets, from `next_` on.
void Reducer::take_on_gpu(Request request, const GpuSource& there) {
  if (next_ == 0) {
    const uint64_t claimed = gpu_->step_order().claim(owner());
    if (there.weight != nullptr) {
      request.weight = static_cast<double>(gpu_->read(there.weight, there.stream));
    }
    begin_step_on_gpu(request.weight, &claimed);
  } else {
    gpu_->step_order().resume(owner());
  }
  std::vector<std::function<void()>> traces;
  try {
    gpu_->follow(there.stream);
    std::string text;
    for (auto array = request.arrays.begin(); array != request.arrays.end();) {
      const auto end = array + static_cast<std::ptrdiff_t>(buckets_[next_].bytes.size());
      const std::vector<Segment> arrays(array, end);
      array = end;
      text = text_of_bucket();
      if (request.handed_in != 0) {
        traces.push_back(bucket_trace(load_of(next_).total(), request.handed_in, Trace::now()));
      }
      reduce_on_gpu(arrays);
    }
    const auto after = [done = std::move(request.done), traces = std::move(traces)] {
      for (const auto& trace : traces) trace();
      done("");
    };
    gpu_->watch().mark(gpu_->stream(), there.stream, {number(), text, after});
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  if (next_ == 0) {
    gpu_->step_order().end(owner());
  } else {
    gpu_->step_order().pause(owner());
  }
}

void Reducer::take_joined_step_on_gpu() {
  const CurrentContext current(context_of(gpu_->gpu()));
  const RelaxedCapture relaxed;
  if (!begin_step_on_gpu(0, nullptr)) return;
  try {
    const std::string text = text_of_bucket();
    do {
      reduce_on_gpu(gpu_->zeros(buckets_[next_].bytes));
    } while (next_ != 0);
    gpu_->watch().mark(gpu_->stream(), std::nullopt, {number(), text, [] {}});
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  gpu_->step_order().end(owner());
}

void Reducer::reduce_on_gpu(const std::vector<Segment>& arrays) {
  check(arrays);
  const GpuLoad load = load_of(next_);
  const GpuAlgorithm algorithm = gpu_->algorithm_of(load);
  const std::string text = text_of_bucket();
  if (algorithm == GpuAlgorithm::host) {
    reduce_by_host(arrays, text);
  } else {
    Reduction reduction = load.reduction;
    if (reduction.is_scaled) reduction.factor = share_ / (divisor_ * communicator_.size());
    communicator_.take_part(
        "allreduce on GPUs", load.total(), Fingerprint(text), [&](const Idle& idle) {
          gpu_->reduce(communicator_, arrays, load.dtype, algorithm, reduction, idle);
        });
  }
  end_bucket();
}

void Reducer::reduce_by_host(const std::vector<Segment>& arrays, const std::string& text) {
  // Nobody else can be late where a rank waits for its own GPU.
  uint8_t* at = gpu_->fetch(arrays, [] {});
  std::vector<Segment> copies;
  for (const Segment& array : arrays) {
    copies.push_back({at, at, array.bytes});
    at += array.bytes;
  }
  weigh(copies);
  communicator_.allreduce(SegmentList(copies), buckets_[next_].dtype, op_, Fingerprint(text));
  divide(copies);
  gpu_->bring_back(arrays);
}

}  // namespace easyddl
