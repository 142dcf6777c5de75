// What the reducer does in a step: the weights, the control word, and each bucket.
#include <atomic>
#include <utility>

#include "arrays/arithmetic.h"
#include "common/check.h"
#include "profiling/trace.h"
#include "reducer/reducer.h"

namespace easyddl {
namespace {

std::atomic<uint64_t> g_reduced_steps{0};

size_t bytes_of(const std::vector<Rows>& rows) {
  size_t bytes = 0;
  for (const Rows& each : rows) bytes += each.count * sizeof(int64_t) + each.bytes;
  return bytes;
}

}  // namespace

void Reducer::begin_step(double weight, bool active) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    mine_ = joined_.word(weight, active);
  }
  if (op_ == Op::mean && usual_weight_ == 0) agree_on_usual_weight();
  share_ = 1;
  // Without a usual weight none of the ranks has any.
  if (op_ == Op::mean && active && mine_.unweighted == 0) {
    share_ = usual_weight_ > 0 ? mine_.weight / usual_weight_ : 0;
  }
}

// Before the first step only: later ones go by the one before. Scaling by the weights themselves
// could take a 16-bit gradient beyond its range.
void Reducer::agree_on_usual_weight() {
  const ControlWord all = exchange_control("the first weights of " + what_);
  if (all.any_active() && all.weight > 0) usual_weight_ = all.weight / all.active;
}

// One control word alone.
ControlWord Reducer::exchange_control(const std::string& text) {
  ControlWord::Floats floats = mine_.to_floats();
  auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
  communicator_.allreduce(SegmentList({{bytes, bytes, sizeof floats}}), DType::float32, Op::sum,
                          Fingerprint(text));
  return ControlWord::from_floats(floats, 1);
}

void Reducer::reduce(std::vector<Segment> arrays, int64_t handed_in) {
  check(arrays);
  weigh(arrays);
  travel(arrays, handed_in);
  if (!step_has_batches_) return;  // all have joined: there was no step
  divide(arrays);
  end_bucket();
}

// All ranks' rows, for the request of this one; null if it has no batch. The control word has told
// all weights by then, so that rows need be multiplied but once.
void Reducer::gather_rows(const Request* request) {
  const std::string text = text_of_bucket();
  if (next_ == 0) {
    take_in(exchange_control("the control word of " + text));
    if (!step_has_batches_) return;
  }
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  const double factor = op_ == Op::mean ? share_ / divisor_ / communicator_.size() : 1;
  if (request == nullptr) {
    rows_.run(communicator_, {}, 0, {}, Fingerprint(text));
  } else {
    rows_.run(communicator_, request->rows, factor, request->make_room, Fingerprint(text));
    if (request->handed_in != 0) bucket_trace(bytes_of(request->rows), request->handed_in, begun)();
  }
  end_bucket();
}

void Reducer::check(const std::vector<Segment>& arrays) const {
  const Bucket& bucket = buckets_[next_];
  for (size_t i = 0; i < arrays.size(); ++i) {
    if (arrays[i].bytes == bucket.bytes[i]) continue;
    throw Error("Array " + std::to_string(i) + " of bucket " + std::to_string(next_) + " of " +
                what_ + " has " + std::to_string(arrays[i].bytes) + " bytes where " +
                std::to_string(bucket.bytes[i]) + " were registered.");
  }
}

void Reducer::weigh(std::vector<Segment>& arrays) const {
  if (share_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (Segment& array : arrays) {
    scale(array.out, array.in, array.bytes / size_of(dtype), dtype, share_);
    array.in = array.out;
  }
}

void Reducer::divide(const std::vector<Segment>& arrays) const {
  if (divisor_ == 1) return;
  const DType dtype = buckets_[next_].dtype;
  for (const Segment& array : arrays) {
    scale(array.out, array.out, array.bytes / size_of(dtype), dtype, 1 / divisor_);
  }
}

std::string Reducer::text_of_bucket() const {
  return "bucket " + std::to_string(next_ + 1) + " of " + std::to_string(num_buckets()) +
         " in step " + std::to_string(step_) + " of " + what_;
}

void Reducer::travel(std::vector<Segment> arrays, int64_t handed_in) {
  const Bucket& bucket = buckets_[next_];
  const std::string text = text_of_bucket();
  // In the first bucket, if its elements can hold the control word; else before it.
  const bool rides = next_ == 0 && bucket.dtype == DType::float32;
  ControlWord::Floats floats = mine_.to_floats();
  if (rides) {
    auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
    arrays.push_back({bytes, bytes, sizeof floats});
  } else if (next_ == 0) {
    take_in(exchange_control("the control word of " + text));
    if (!step_has_batches_) return;
  }
  const SegmentList segments(std::move(arrays));
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  communicator_.allreduce(segments, bucket.dtype, op_, Fingerprint(text));
  if (rides) {
    const int ranks = communicator_.size();
    take_in(ControlWord::from_floats(floats, op_ == Op::mean ? ranks : 1));
  }
  if (handed_in != 0) bucket_trace(segments.bytes(), handed_in, begun)();
}

void Reducer::take_in(const ControlWord& all) {
  const std::lock_guard<std::mutex> lock(mutex_);
  step_has_batches_ = joined_.take_in(all, mine_.active != 0, communicator_.size());
  if (!step_has_batches_) return all_joined_.notify_all();
  divisor_ = 1;
  if (op_ != Op::mean || all.weight <= 0) return;
  if (!all.any_unweighted()) divisor_ = all.weight / communicator_.size() / usual_weight_;
  usual_weight_ = all.weight / all.active;
}

void Reducer::end_bucket() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (++next_ < num_buckets()) return;
  next_ = 0;
  ++step_;
  joined_.end_step();
  if (mine_.active != 0 && place_ == ArrayPlace::host) {
    waited_ += std::chrono::steady_clock::now() - last_handed_in_;
  }
  if (op_ == Op::mean) g_reduced_steps.fetch_add(1);
}

// To be called once a bucket is done, which is the next one now.
std::function<void()> Reducer::bucket_trace(size_t bytes, int64_t handed_in, int64_t begun) const {
  const auto count = [](auto value) { return static_cast<int64_t>(value); };
  return [=, step = step_, bucket = next_, buckets = num_buckets(), reducer = number()] {
    Trace::on()->add("bucket", handed_in, Trace::now(),
                     {{"exchange", reducer},
                      {"step", count(step)},
                      {"bucket", count(bucket)},
                      {"buckets", count(buckets)},
                      {"bytes", count(bytes)},
                      {"begun", begun}});
  };
}

uint64_t reduced_steps() { return g_reduced_steps.load(); }

}  // namespace easyddl
