#include "reducer/host_reduction.h"

#include <string>
#include <utility>

#include "collectives/allreduce.h"
#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

size_t bytes_of(const std::vector<Rows>& rows) {
  size_t bytes = 0;
  for (const Rows& each : rows) bytes += each.count * sizeof(int64_t) + each.bytes;
  return bytes;
}

}  // namespace

void HostReduction::run(const Request& request) {
  if (step_.are_rows_next()) {
    rows_.check(request.rows);
    if (step_.next() == 0) step_.begin(request.weight, true);
    return gather_rows(&request);
  }
  auto array = request.arrays.begin();
  do {
    if (step_.are_rows_next()) throw Error("Too many arrays for " + plan_.what + ".");
    const size_t count = step_.bucket().bytes.size();
    if (static_cast<size_t>(request.arrays.end() - array) < count) {
      throw Error("Too few arrays for bucket " + std::to_string(step_.next()) + " of " +
                  plan_.what + ".");
    }
    if (step_.next() == 0) step_.begin(request.weight, true);
    const auto end = array + static_cast<std::ptrdiff_t>(count);
    reduce({array, end}, request.submitted_at);
    array = end;
  } while (array != request.arrays.end());
}

void HostReduction::run_joined_step() {
  step_.begin(0, false);
  do {
    if (step_.are_rows_next()) {
      gather_rows(nullptr);
      continue;
    }
    std::vector<std::vector<uint8_t>> zeros;
    std::vector<Segment> arrays;
    for (size_t bytes : step_.bucket().bytes) {
      uint8_t* data = zeros.emplace_back(bytes).data();
      arrays.push_back({data, data, bytes});
    }
    reduce(std::move(arrays), 0);
  } while (step_.next() != 0);
}

void HostReduction::reduce(std::vector<Segment> arrays, int64_t submitted_at) {
  const DType dtype = step_.bucket().dtype;
  plan_.check(arrays, step_.next());
  step_.weights().multiply_by_share(arrays, dtype);
  allreduce_bucket(arrays, submitted_at);
  if (!step_.has_batches()) return;  // all ranks have joined, so there was no step
  step_.weights().divide(arrays, dtype);
  step_.end_bucket(true);
}

void HostReduction::allreduce_bucket(std::vector<Segment> arrays, int64_t submitted_at) {
  const DType dtype = step_.bucket().dtype;
  const std::string text = step_.text();
  // The control word is part of the first bucket if that has its dtype and is not rounded.
  // Otherwise it is reduced before the bucket.
  const bool has_control_word = step_.next() == 0 && dtype == DType::float32 && !plan_.wire;
  ControlWord::Floats floats = step_.control_word().to_floats();
  if (has_control_word) {
    auto* bytes = reinterpret_cast<uint8_t*>(floats.data());
    arrays.push_back({bytes, bytes, sizeof floats});
  } else if (step_.next() == 0) {
    step_.allreduce_control_word();
    if (!step_.has_batches()) return;
  }
  const SegmentList segments(std::move(arrays));
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  allreduce(communicator_, segments, dtype, Op::mean, Fingerprint(text), plan_.wire);
  if (has_control_word) {
    step_.apply_control_word(ControlWord::from_floats(floats, communicator_.size()));
  }
  if (submitted_at != 0) step_.trace(segments.bytes(), submitted_at, begun)();
}

// Gathers the rows of all ranks. `request` is null if this rank has no batch. All weights are
// already known from the control word, so that rows are multiplied only once.
void HostReduction::gather_rows(const Request* request) {
  const std::string text = step_.text();
  if (step_.next() == 0) {
    step_.allreduce_control_word();
    if (!step_.has_batches()) return;
  }
  const int64_t begun = Trace::on() != nullptr ? Trace::now() : 0;
  const GradientWeights& weights = step_.weights();
  const double factor = weights.share() / weights.divisor() / communicator_.size();
  if (request == nullptr) {
    rows_.run(communicator_, {}, 0, {}, Fingerprint(text));
  } else {
    rows_.run(communicator_, request->rows, factor, request->allocate_rows, Fingerprint(text));
    if (request->submitted_at != 0) {
      step_.trace(bytes_of(request->rows), request->submitted_at, begun)();
    }
  }
  step_.end_bucket(true);
}

}  // namespace easyddl
