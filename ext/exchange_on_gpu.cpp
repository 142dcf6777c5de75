// The exchange's part for arrays that lie on GPUs.
//
// A framework queues its work ahead, so nobody may wait on its thread; and what it queues after
// an exchange reads the results. StreamOrder keeps that order; GpuLevel does the work. The control
// word stays the hosts', and goes before the data, because the weights are NCCL's to multiply by.
#include <algorithm>
#include <exception>
#include <utility>

#include "check.h"
#include "exchange.h"
#include "process.h"
#include "trace.h"

namespace easyddl {
namespace {

// Nobody else can be late where a rank waits for its own GPU.
const Idle kNothing = [] {};

int gpu_of_first(const std::vector<Piece>& arrays) {
  for (const Piece& array : arrays) {
    if (array.bytes > 0) return gpu_of(array.in);
  }
  int gpu = 0;
  EASYDDL_CUDA(CtxGetDevice, &gpu);
  return gpu;
}

}  // namespace

std::string Exchange::submit_on_gpu(size_t first, std::vector<Piece> arrays,
                                    const float* gpu_weight, double weight, void* stream,
                                    const Done& done) {
  const int64_t handed_in = Trace::on() != nullptr ? Trace::now() : 0;
  try {
    StreamOrder& order = order_for(first, arrays);
    const auto ticket = order.enter(gpu_weight, static_cast<CudaStream>(stream));
    std::unique_lock<std::mutex> lock(mutex_);
    if (!failure_.empty()) {
      order.give_back(ticket);
      throw Error(failure_);
    }
    count_in(arrays.size());
    waiting_[first].push_back(
        {std::move(arrays), weight, done, handed_in, ticket, gpu_weight != nullptr});
    came_.notify_one();
    // Until all is set up no stream waits: setting up may have to wait for streams.
    place_known_.wait(lock, [this] { return place_ != Place::unknown || !failure_.empty(); });
    if (place_ == Place::unknown) return failure_;  // the thread calls `done`
    order.hold(ticket);
    return "";
  } catch (const std::exception& error) {
    done(error.what());
    return error.what();
  }
}

// Throws if no such arrays can be handed in.
StreamOrder& Exchange::order_for(size_t first, const std::vector<Piece>& arrays) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const std::string refused = refusal(first, Place::gpu);
  if (!refused.empty()) throw Error(refused);
  // A stream that waits for a bucket never comes to one that travels before it.
  if (first != next_on_gpu_) {
    throw Error("Bucket " + std::to_string(first) + " of " + what_ +
                " was handed in where bucket " + std::to_string(next_on_gpu_) +
                " was to come. On GPUs buckets must come in their order.");
  }
  const int gpu = gpu_of_first(arrays);
  if (order_ == nullptr) order_ = StreamOrder::borrow(gpu);
  if (order_->gpu() != gpu) {
    throw Error("The arrays of " + what_ + " lie on GPU " + std::to_string(gpu) +
                ", and before on GPU " + std::to_string(order_->gpu()) +
                ". Each rank must train on one.");
  }
  return *order_;
}

// So many arrays have been handed in.
void Exchange::count_in(size_t arrays) {
  while (arrays > 0) {
    arrays -= std::min(arrays, buckets_[next_on_gpu_].bytes.size());
    next_on_gpu_ = (next_on_gpu_ + 1) % buckets_.size();
  }
}

GpuLoad Exchange::load_of(size_t bucket) const {
  const Reduction reduction =
      op_ == Op::mean ? Reduction{Op::sum, true, 1} : Reduction{op_, false, 1};
  return {buckets_[bucket].dtype, buckets_[bucket].bytes, reduction};
}

void Exchange::prepare_gpu() {
  std::optional<int> mine;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (order_ != nullptr) mine = order_->gpu();
  }
  std::vector<GpuLoad> loads;
  for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) loads.push_back(load_of(bucket));
  GpuLevel& level = channel_.gpu_level();
  level.prepare(loads, mine);
  gpu_ = &level;
}

// The GPU's own streams wait for the arrays; the host does only where it must know the weight.
void Exchange::read_weight(Request& request) {
  if (next_ == 0 && request.weighs_on_gpu) {
    const Span span("wait for the weight");
    poll([&] { return order_->has_come(*request.ticket); }, true, kNothing);
    request.weight = static_cast<double>(order_->weight(*request.ticket));
  }
  order_->hold_up(gpu_->stream(), *request.ticket);
}

// `ticket` is null while the request has more buckets, and for a rank that has joined.
void Exchange::reduce_on_gpu(const std::vector<Piece>& arrays, int64_t handed_in,
                             const StreamOrder::Ticket* ticket) {
  const GpuLoad load = load_of(next_);
  const GpuWay way = gpu_->way_of(load);
  if (way == GpuWay::host) return reduce_by_host(arrays, handed_in, ticket);
  check(arrays);
  const std::string text = text_of_bucket();
  if (next_ == 0) {
    take_in(exchange_control("the control word of " + text));
    if (!step_has_batches_) return;
  }
  Reduction reduction = load.reduction;
  if (reduction.is_scaled) reduction.factor = share_ / (divisor_ * channel_.size());
  const int64_t begun = handed_in != 0 ? Trace::now() : 0;
  channel_.take_part("allreduce on GPUs", load.total(), Signature(text), [&](const Idle& idle) {
    gpu_->reduce(arrays, load.dtype, way, reduction, idle);
    if (ticket != nullptr || mine_.active == 0) finish_on_gpu(ticket, idle);
  });
  if (handed_in != 0) trace_bucket(load.total(), handed_in, begun);
  end_bucket();
}

void Exchange::reduce_by_host(const std::vector<Piece>& arrays, int64_t handed_in,
                              const StreamOrder::Ticket* ticket) {
  check(arrays);
  uint8_t* at = gpu_->fetch(arrays, kNothing);
  std::vector<Piece> copies;
  for (const Piece& array : arrays) {
    copies.push_back({at, at, array.bytes});
    at += array.bytes;
  }
  reduce(std::move(copies), handed_in);
  gpu_->bring_back(arrays);
  if (ticket != nullptr) finish_on_gpu(ticket, kNothing);
}

void Exchange::finish_on_gpu(const StreamOrder::Ticket* ticket, const Idle& idle) {
  if (ticket != nullptr) order_->call_after(gpu_->stream(), *ticket);
  gpu_->wait(idle);
}

// Frees a stream that waits for a request, which has ended.
void Exchange::let_go(const Request& request) {
  if (!request.ticket) return;
  order_->call(*request.ticket);
  order_->give_back(*request.ticket);
}

// The framework does not ask how a request went before it uses the results. And its stream must
// not go on without them.
void Exchange::end_job_for(const std::string& failure) const {
  const Layout& layout = channel_.layout();
  write_line("easyddl: rank " + std::to_string(layout.rank) + " on host " +
             layout.host_of[static_cast<size_t>(layout.rank)] +
             " failed in an exchange of gradients on GPUs: " + failure);
  end_job(1);
}

}  // namespace easyddl
