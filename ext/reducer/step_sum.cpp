#include "reducer/step_sum.h"

#include <exception>

#include "collectives/barrier.h"
#include "collectives/message_tags.h"
#include "common/check.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

StepSum::StepSum(ReducerGroup& group, std::string what, size_t count)
    : Participant(std::move(what), group.sums().mutex()),
      world_(group.world()),
      thread_(group.sums()),
      bytes_(count * sizeof(float)),
      id_(world_.exit_protocol().add_communicator()) {
  const int tag = first_tag(world_.comm(), id_);
  const size_t most_bytes = bytes_ + sizeof(ControlWord::Floats);
  uninterruptible_barrier(group.communicator(), Fingerprint("the creation of " + this->what()));
  all_or_none(world_.comm(), [&] {
    sum_ = std::make_unique<NonblockingSum>(world_, tag, most_bytes,
                                            [&thread = thread_] { thread.wake_all(); });
    world_.stall_inspector().add_child(id_, group.communicator().id());
  });
  thread_.add(this);
}

StepSum::~StepSum() { close(); }

void StepSum::submit(size_t first, std::vector<Segment> arrays, double, Done done) {
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    const size_t bytes = total_bytes(arrays);
    std::string refused = state().failure;
    if (refused.empty() && (first != 0 || bytes != bytes_)) {
      refused = "An array of " + std::to_string(bytes) + " bytes was submitted to " + what() +
                ", which needs " + std::to_string(bytes_) + " bytes.";
    }
    if (!refused.empty()) {
      finished.emplace_back(std::move(done), refused);
    } else {
      waiting_.push_back({std::move(arrays), std::move(done), Clock::now()});
      // On this thread, so that the last rank need not wait for another thread to wake.
      advance(finished);
      if (is_in_progress()) thread_.wake_own();
    }
  }
  call_all(finished);
}

std::string StepSum::submit_on_gpu(size_t first, std::vector<Segment> arrays, const float*,
                                   double weight, void* stream, const Done& done) {
  const std::string error = gpu_.submit(*this, first, arrays, weight, stream);
  done(error);
  return error;
}

void StepSum::submit_rows(std::vector<Rows>, double, AllocateRows, Done done) {
  done("Rows were submitted to " + what() + ", which takes one array.");
}

void StepSum::give_up(const std::string& why) {
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (state().failure.empty()) fail(why, finished);
  }
  call_all(finished);
}

bool StepSum::advance(Finished& finished) {
  bool has_advanced = false;
  try {
    while (state().failure.empty()) {
      if (!is_in_progress()) {
        if (waiting_.empty() && !state().join.is_joining()) break;
        begin_step();
      } else if (!sum_->advance()) {
        break;
      } else if (!is_in_progress()) {
        end_step(finished);
      }
      has_advanced = true;
    }
  } catch (const std::exception& error) {
    fail(error.what(), finished);
    has_advanced = true;
  }
  return has_advanced;
}

void StepSum::begin_step() {
  const bool active = !waiting_.empty();
  floats_ = state().join.word(1, active).to_floats();
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
  auto data = std::make_unique<SegmentList>(std::move(arrays));
  const std::string failure = world_.stall_inspector().failure_of(id_);
  if (!failure.empty()) throw Error(failure);
  number_of_step_ = world_.exit_protocol().begin(id_);
  since_ = Clock::now();
  begin_ = Trace::on() != nullptr ? Trace::now() : 0;
  sum_->begin(std::move(data));
}

void StepSum::end_step(Finished& finished) {
  trace();
  end_wait();
  world_.exit_protocol().end(id_);
  JoinState& join = state().join;
  const bool was_step = join.update(ControlWord::from_floats(floats_, 1), current_.has_value(),
                                    world_.topology().size);
  if (!was_step) state().all_joined.notify_all();
  if (was_step) {
    join.end_step();
    ++step_;
  }
  if (!current_) return;
  state().blocked_time += Clock::now() - current_->submitted_at;
  finished.emplace_back(std::move(current_->done), "");
  current_.reset();
}

void StepSum::end_wait() {
  if (is_watched_) world_.stall_inspector().end_wait(id_);
  is_watched_ = false;
}

// (communicator, number) matches the spans of one sum across ranks.
void StepSum::trace() const {
  if (Trace::on() == nullptr || begin_ == 0) return;
  const std::string what = text();
  Trace::on()->add("allreduce", begin_, Trace::now(),
                   {{"communicator", static_cast<int64_t>(id_)},
                    {"number", static_cast<int64_t>(number_of_step_)},
                    {"bytes", static_cast<int64_t>(bytes_)}},
                   &what);
}

std::string StepSum::text() const { return "step " + std::to_string(step_) + " of " + what(); }

void StepSum::check(Finished& finished) {
  if (!is_in_progress() || !state().failure.empty()) return;
  try {
    world_.exit_protocol().check(id_, number_of_step_, text(), world_.topology());
    is_watched_ = true;
    world_.stall_inspector().check(id_, number_of_step_, text(), since_, false);
  } catch (const std::exception& error) {
    fail(error.what(), finished);
  }
}

// Breaks the sum on all ranks. The sum in progress is left as it is, because other ranks may use
// the shared memory.
void StepSum::fail(const std::string& why, Finished& finished) {
  state().failure = why;
  if (is_in_progress()) world_.exit_protocol().end(id_);
  end_wait();
  world_.stall_inspector().announce_failure(id_, text() + " failed part-way: " + why);
  if (current_) finished.emplace_back(std::move(current_->done), why);
  current_.reset();
  for (PendingArray& pending : std::exchange(waiting_, {})) {
    finished.emplace_back(std::move(pending.done), why);
  }
  state().all_joined.notify_all();
}

void StepSum::close() {
  registration().close();
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(state().mutex);
    if (is_in_progress() && state().failure.empty()) {
      fail(what() + " was closed during a step.", finished);
    }
    if (state().failure.empty()) state().failure = end_text();
  }
  call_all(finished);
  registration().end();
  thread_.remove(this);
  world_.stall_inspector().remove_child(id_);
  // After a step that failed part-way, MPI may still write to message buffers, and other ranks may
  // read the shared memory.
  if (is_in_progress()) keep_forever(std::move(sum_));
  sum_.reset();
  zeros_ = std::vector<uint8_t>();
  gpu_.close();
}

}  // namespace easyddl
