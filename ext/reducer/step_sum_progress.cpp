// How a sum inside of a step moves on, from one state to the next.
#include <algorithm>
#include <cstring>
#include <utility>

#include "arrays/arithmetic.h"
#include "common/check.h"
#include "profiling/trace.h"
#include "reducer/step_sum.h"

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

// Below this every member adds up all of the others' data: one phase instead of two.
constexpr size_t kAtOnce = 8 << 10;

// Shards begin at multiples of this, so that no two ranks write to one cache line.
constexpr size_t kLine = 128;

}  // namespace

bool StepSum::advance(Finished& finished) {
  bool has_moved = false;
  try {
    while (failure_.empty()) {
      if (state_ == State::idle) {
        if (waiting_.empty() && !joined_.is_joining()) break;
        begin_step();
      } else if (state_ == State::between_hosts) {
        if (!end_between_hosts()) break;
      } else if (state_ == State::gathering) {
        if (!shared_memory_->have_all_ended(phase_)) break;
        end_gathering(finished);
      } else {
        if (!shared_memory_->have_all_ended(phase_ + 1)) break;
        copy_shards();
        end_chunk(finished);
      }
      has_moved = true;
    }
  } catch (const std::exception& error) {
    fail(error.what(), finished);
    has_moved = true;
  }
  return has_moved;
}

void StepSum::begin_step() {
  const bool active = !waiting_.empty();
  mine_ = joined_.word(1, active);
  floats_ = mine_.to_floats();
  std::vector<Segment> arrays;
  if (active) {
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    arrays = current_->arrays;
  } else {
    zeros_.assign(bytes_, 0);
    arrays.push_back({zeros_.data(), zeros_.data(), bytes_});
  }
  auto* const word = reinterpret_cast<uint8_t*>(floats_.data());
  arrays.push_back({word, word, sizeof floats_});
  data_ = std::make_unique<SegmentList>(std::move(arrays));
  const std::string failure = world_.stall_inspector().failure_of(id_);
  if (!failure.empty()) throw Error(failure);
  number_of_step_ = world_.exit_protocol().begin(id_);
  since_ = Clock::now();
  begin_ = Trace::on() != nullptr ? Trace::now() : 0;
  at_ = 0;
  begin_chunk();
}

void StepSum::begin_chunk() {
  phase_ = shared_memory_->phase();
  const ByteRange mine = chunk();
  data_->copy_in(mine.begin, mine.end, shared_memory_->slot(shared_memory_->rank(), phase_));
  state_ = State::gathering;
  end_phase();
}

// Whoever completes a phase has the others of the host go on.
void StepSum::end_phase() {
  const uint32_t phase = shared_memory_->phase();
  shared_memory_->end_phase();
  if (shared_memory_->size() > 1 && shared_memory_->have_all_ended(phase)) all_.wake_all();
}

StepSum::ByteRange StepSum::chunk() const {
  return {at_, std::min(data_->bytes(), at_ + shared_memory_->slot_bytes())};
}

int StepSum::owners() const {
  return topology_.num_nodes > 1 ? topology_.num_leaders : topology_.local_size;
}

// Within the chunk.
StepSum::ByteRange StepSum::shard(int owner) const {
  const size_t bytes = chunk().end - chunk().begin;
  const size_t n = static_cast<size_t>(owners()), i = static_cast<size_t>(owner);
  const size_t each = ((bytes + n - 1) / n + kLine - 1) / kLine * kLine;
  return {std::min(bytes, i * each), std::min(bytes, (i + 1) * each)};
}

bool StepSum::is_at_once() const { return topology_.num_nodes == 1 && data_->bytes() <= kAtOnce; }

// The members' arrays, from `offset` of the chunk on.
const void* const* StepSum::sources(size_t offset) {
  for (int member = 0; member < shared_memory_->size(); ++member) {
    sources_[static_cast<size_t>(member)] = shared_memory_->slot(member, phase_) + offset;
  }
  return sources_.data();
}

// All members have written.
void StepSum::end_gathering(Finished& finished) {
  if (is_at_once()) {
    data_->for_each(0, data_->bytes(),
                    [this](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                      accumulate_and_finish(out, sources(offset), sources_.size(),
                                            bytes / sizeof(float), DType::float32, Op::sum, 1);
                    });
    end_chunk(finished);
  } else if (shared_memory_->rank() >= owners()) {
    state_ = State::spreading;
    end_phase();
  } else if (topology_.num_nodes > 1) {
    reduce_across_hosts();
  } else {
    reduce_shard();
  }
}

void StepSum::reduce_shard() {
  const ByteRange mine = shard(shared_memory_->rank());
  if (mine.end > mine.begin) {
    accumulate_and_finish(shared_memory_->slot(shared_memory_->rank(), phase_ + 1) + mine.begin,
                          sources(mine.begin), sources_.size(),
                          (mine.end - mine.begin) / sizeof(float), DType::float32, Op::sum, 1);
  }
  state_ = State::spreading;
  end_phase();
}

void StepSum::reduce_across_hosts() {
  const ByteRange mine = shard(shared_memory_->rank());
  schedule_->count = (mine.end - mine.begin) / sizeof(float);
  schedule_->data.resize(mine.end - mine.begin);
  if (schedule_->count > 0) {
    accumulate(schedule_->data.data(), sources(mine.begin), sources_.size(), schedule_->count,
               DType::float32, Op::sum);
  }
  remote_.plan_allreduce(*schedule_, DType::float32, Op::sum);
  state_ = State::between_hosts;
}

bool StepSum::end_between_hosts() {
  if (!schedule_->advance()) return false;
  const ByteRange mine = shard(shared_memory_->rank());
  if (mine.end > mine.begin) {
    std::memcpy(shared_memory_->slot(shared_memory_->rank(), phase_ + 1) + mine.begin,
                schedule_->data.data(), mine.end - mine.begin);
  }
  state_ = State::spreading;
  end_phase();
  return true;
}

void StepSum::copy_shards() {
  for (int owner = 0; owner < owners(); ++owner) {
    const ByteRange theirs = shard(owner);
    data_->copy_out(at_ + theirs.begin, at_ + theirs.end,
                    shared_memory_->slot(owner, phase_ + 1) + theirs.begin);
  }
}

void StepSum::end_chunk(Finished& finished) {
  at_ = chunk().end;
  if (at_ < data_->bytes()) return begin_chunk();
  end_step(finished);
}

void StepSum::end_step(Finished& finished) {
  state_ = State::idle;
  trace();
  if (is_watched_) world_.stall_inspector().forget(id_);
  is_watched_ = false;
  world_.exit_protocol().end(id_);
  const bool was_step =
      joined_.take_in(ControlWord::from_floats(floats_, 1), current_.has_value(), topology_.size);
  if (!was_step) all_joined_.notify_all();
  if (was_step) {
    joined_.end_step();
    ++step_;
  }
  if (!current_) return;
  waited_ += Clock::now() - current_->handed_in;
  finished.emplace_back(std::move(current_->done), "");
  current_.reset();
}

// By `communicator` and `number` the spans of one sum belong together across the ranks.
void StepSum::trace() const {
  if (Trace::on() == nullptr || begin_ == 0) return;
  const std::string what = text();
  Trace::on()->add("allreduce", begin_, Trace::now(),
                   {{"channel", static_cast<int64_t>(id_)},
                    {"number", static_cast<int64_t>(number_of_step_)},
                    {"bytes", static_cast<int64_t>(bytes_)}},
                   &what);
}

std::string StepSum::text() const { return "step " + std::to_string(step_) + " of " + what_; }

void StepSum::check(Finished& finished) {
  if (!is_under_way() || !failure_.empty()) return;
  try {
    world_.exit_protocol().check(id_, number_of_step_, text(), topology_);
    is_watched_ = true;
    world_.stall_inspector().check(id_, number_of_step_, text(), since_, false);
  } catch (const std::exception& error) {
    fail(error.what(), finished);
  }
}

// Nothing can follow, on any rank. What is in progress stays as it is: other ranks may use the
// shared memory.
void StepSum::fail(const std::string& why, Finished& finished) {
  failure_ = why;
  if (is_under_way()) world_.exit_protocol().end(id_);
  if (is_watched_) world_.stall_inspector().forget(id_);
  is_watched_ = false;
  world_.stall_inspector().announce_failure(id_, text() + " ended half-way: " + why);
  if (current_) finished.emplace_back(std::move(current_->done), why);
  current_.reset();
  for (PendingArray& request : std::exchange(waiting_, {})) {
    finished.emplace_back(std::move(request.done), why);
  }
  all_joined_.notify_all();
}

}  // namespace easyddl
