#include "reducer/gpu_reduction.h"

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <utility>

#include "collectives/allreduce.h"
#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {

int gpu_of_first(const std::vector<Segment>& arrays) {
  for (const Segment& array : arrays) {
    if (array.bytes > 0) return gpu_of(array.in);
  }
  int gpu = 0;
  EASYDDL_CUDA(CtxGetDevice, &gpu);
  return gpu;
}

void GpuReduction::require(size_t first, const std::vector<Segment>& arrays, int gpu,
                           CudaStream stream) const {
  if (first != step_.next()) {
    throw Error("Bucket " + std::to_string(first) + " of " + plan_.what +
                " was submitted, but bucket " + std::to_string(step_.next()) +
                " was expected. On GPUs buckets must be submitted in order.");
  }
  size_t bucket = first, count = 0;
  while (count < arrays.size() && bucket < plan_.buckets.size())
    count += plan_.buckets[bucket++].bytes.size();
  if (count != arrays.size()) {
    throw Error("The submitted arrays are not those of whole buckets of " + plan_.what +
                ", beginning with bucket " + std::to_string(first) +
                ". Received: " + std::to_string(arrays.size()) + " arrays");
  }
  if (gpu_ != nullptr && gpu_->gpu() != gpu) {
    throw Error("The arrays of " + plan_.what + " are on GPU " + std::to_string(gpu) +
                ", but this rank reduces gradients on GPU " + std::to_string(gpu_->gpu()) +
                ". Each rank must train on a single GPU.");
  }
  refuse_capture(stream);
}

GpuLoad GpuReduction::load_of(size_t bucket) const {
  return {plan_.buckets[bucket].dtype, plan_.buckets[bucket].bytes, plan_.wire};
}

bool GpuReduction::only_queues() const {
  for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    if (gpu_->algorithm_of(load_of(bucket)) != GpuAlgorithm::nccl) return false;
  }
  return true;
}

void GpuReduction::prepare(const std::vector<int64_t>& positions, std::optional<int> gpu,
                           const uint64_t* claimed) {
  GpuCommunicator& gpus = group_.gpu();
  double sum = 0;
  for (int64_t each : positions) sum += GpuStepOrder::to_float(static_cast<uint64_t>(each));
  const auto ranks = static_cast<double>(positions.size());
  const RelaxedCapture relaxed;
  gpus.step_order().begin(owner(), gpus.step_order().agreed(sum, ranks, claimed));
  std::vector<GpuLoad> loads;
  for (size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) loads.push_back(load_of(bucket));
  try {
    gpus.prepare(communicator_, loads, gpu);
  } catch (...) {
    gpus.step_order().end(owner());
    throw;
  }
  gpus.step_order().end(owner());
  gpu_ = &gpus;
}

// A rank without a batch claims no position. Returns false if no rank has a batch: then there is no
// step.
bool GpuReduction::begin_step(double weight, const uint64_t* claimed) {
  step_.begin(weight, claimed != nullptr);
  constexpr size_t kLength = ControlWord::kLength;
  const ControlWord::Floats mine = step_.control_word().to_floats();
  std::array<float, kLength + 1> floats{};
  std::copy(mine.begin(), mine.end(), floats.begin());
  if (claimed != nullptr) floats[kLength] = GpuStepOrder::to_float(*claimed);
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  allreduce(communicator_, SegmentList({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
            Fingerprint("the control word of " + step_.text()));
  ControlWord::Floats sums;
  std::copy_n(floats.begin(), kLength, sums.begin());
  const ControlWord all = ControlWord::from_floats(sums, 1);
  step_.apply_control_word(all);
  if (!step_.has_batches()) return false;
  try {
    gpu_->step_order().begin(owner(),
                             gpu_->step_order().agreed(floats[kLength], all.active, claimed));
    gpu_->monitor().begin_step();
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  return true;
}

void GpuReduction::run(Request request, const GpuSource& source) {
  if (step_.next() == 0) {
    const uint64_t claimed = claim();
    if (source.weight != nullptr) {
      request.weight = static_cast<double>(gpu_->read_weight(source.weight, source.stream));
    }
    begin_step(request.weight, &claimed);
  } else {
    gpu_->step_order().resume(owner());
  }
  std::vector<std::function<void()>> traces;
  try {
    gpu_->wait_for_stream(source.stream);
    std::string text;
    for (auto array = request.arrays.begin(); array != request.arrays.end();) {
      const auto end = array + static_cast<std::ptrdiff_t>(step_.bucket().bytes.size());
      const std::vector<Segment> arrays(array, end);
      array = end;
      text = step_.text();
      if (request.submitted_at != 0) {
        traces.push_back(
            step_.trace(load_of(step_.next()).total(), request.submitted_at, Trace::now()));
      }
      reduce(arrays);
    }
    const auto after = [done = std::move(request.done), traces = std::move(traces)] {
      for (const auto& trace : traces) trace();
      done("");
    };
    gpu_->monitor().mark(gpu_->stream(), source.stream, {reducer_, text, after});
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  if (step_.next() == 0) {
    gpu_->step_order().end(owner());
  } else {
    gpu_->step_order().pause(owner());
  }
}

void GpuReduction::run_joined_step() {
  const CurrentContext current(context_of(gpu_->gpu()));
  const RelaxedCapture relaxed;
  if (!begin_step(0, nullptr)) return;
  try {
    const std::string text = step_.text();
    do {
      reduce(gpu_->zeros(step_.bucket().bytes));
    } while (step_.next() != 0);
    gpu_->monitor().mark(gpu_->stream(), std::nullopt, {reducer_, text, [] {}});
  } catch (const std::exception& error) {
    end_job_for_gpu(communicator_.world(), error.what());
  }
  gpu_->step_order().end(owner());
}

void GpuReduction::reduce(const std::vector<Segment>& arrays) {
  plan_.check(arrays, step_.next());
  const GpuLoad load = load_of(step_.next());
  const std::string text = step_.text();
  if (gpu_->algorithm_of(load) == GpuAlgorithm::host) {
    reduce_by_host(arrays, text);
  } else {
    const GradientWeights& weights = step_.weights();
    const double factor = weights.share() / (weights.divisor() * communicator_.size());
    const Fingerprint fingerprint(text);
    CollectiveCall call{"allreduce on GPUs", load.total(), fingerprint};
    call.is_external = true;
    communicator_.run(
        call, [&](CollectiveContext& context) { gpu_->reduce(context, arrays, load, factor); });
  }
  step_.end_bucket(false);
}

void GpuReduction::reduce_by_host(const std::vector<Segment>& arrays, const std::string& text) {
  const DType dtype = step_.bucket().dtype;
  // Only this rank's own GPU can delay this wait.
  uint8_t* at = gpu_->copy_to_host(arrays, [] {});
  std::vector<Segment> copies;
  for (const Segment& array : arrays) {
    copies.push_back({at, at, array.bytes});
    at += array.bytes;
  }
  step_.weights().multiply_by_share(copies, dtype);
  allreduce(communicator_, SegmentList(copies), dtype, Op::mean, Fingerprint(text), plan_.wire);
  step_.weights().divide(copies, dtype);
  gpu_->copy_to_gpu(arrays);
}

void GpuReduction::close() {
  if (gpu_ == nullptr) return;
  gpu_->monitor().drain(reducer_);
  gpu_->step_order().end(owner());  // of a step that was left unfinished
}

}  // namespace easyddl
