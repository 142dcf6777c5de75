#include "reducer/step_sum.h"

#include <algorithm>

#include "collectives/message_tags.h"
#include "common/check.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"

namespace easyddl {
namespace {

using Clock = std::chrono::steady_clock;

// A chunk's slot. Longer sums take several.
constexpr size_t kChunk = 256 << 10;

// A slot is written again two phases later. A phase's slots are read before its reader ends the
// next phase, and a rank writes again only when all have ended that.
constexpr uint32_t kSlots = 2;

}  // namespace

StepSum::StepSum(World& world, std::string what, size_t count)
    : world_(world),
      topology_(world.topology()),
      all_(StepSumThread::of(world)),
      what_(std::move(what)),
      bytes_(count * sizeof(float)),
      id_(world.exit_protocol().add_communicator()),
      remote_(topology_, world.inter_host_algorithm()),
      schedule_(std::make_unique<Schedule>(first_tag(world.comm(), id_))),
      registration_(*this),
      sources_(static_cast<size_t>(topology_.local_size)) {
  const size_t slot_bytes = std::min(kChunk, bytes_ + sizeof(ControlWord::Floats));
  world.meet("the making of " + what_);
  all_or_none(world.comm(), [&] {
    shared_memory_ = std::make_unique<SharedMemoryLevel>(topology_, slot_bytes, kSlots);
  });
  all_.add(this);
}

StepSum::~StepSum() { close(); }

void StepSum::submit(size_t first, std::vector<Segment> arrays, double, Done done) {
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(all_.mutex());
    const size_t bytes = total_bytes(arrays);
    std::string refused = failure_;
    if (refused.empty() && (first != 0 || bytes != bytes_)) {
      refused = "An array of " + std::to_string(bytes) + " bytes was handed in to " + what_ +
                ", which takes " + std::to_string(bytes_) + ".";
    }
    if (!refused.empty()) {
      finished.emplace_back(std::move(done), refused);
    } else {
      waiting_.push_back({std::move(arrays), std::move(done), Clock::now()});
      // On this thread: the last to come need not wait for another to be woken.
      advance(finished);
      if (is_under_way()) all_.wake_own();
    }
  }
  for (const auto& [each, error] : finished) each(error);
}

std::string StepSum::submit_on_gpu(size_t first, std::vector<Segment> arrays, const float*,
                                   double weight, void* stream, const Done& done) {
  const std::string error = gpu_.submit(*this, first, arrays, weight, stream);
  done(error);
  return error;
}

void StepSum::submit_rows(std::vector<Rows>, double, MakeRoom, Done done) {
  done("Rows were handed in to " + what_ + ", which takes one array.");
}

void StepSum::join() {
  const std::lock_guard<std::mutex> lock(all_.mutex());
  joined_.join();
  all_.wake_own();
}

bool StepSum::wait_for_all(std::chrono::milliseconds time) {
  std::unique_lock<std::mutex> lock(all_.mutex());
  all_joined_.wait_for(lock, time, [this] { return !joined_.is_joining() || !failure_.empty(); });
  if (!failure_.empty()) throw Error(failure_);
  return !joined_.is_joining();
}

void StepSum::give_up(const std::string& why) {
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(all_.mutex());
    if (failure_.empty()) fail(why, finished);
  }
  for (const auto& [done, error] : finished) done(error);
}

void StepSum::ask_to_stop(bool stop) {
  const std::lock_guard<std::mutex> lock(all_.mutex());
  joined_.ask_to_stop(stop);
}

std::optional<std::chrono::nanoseconds> StepSum::waited() {
  const std::lock_guard<std::mutex> lock(all_.mutex());
  if (gpu_.is_used()) return std::nullopt;
  return waited_;
}

JoinSummary StepSum::join_summary() {
  const std::lock_guard<std::mutex> lock(all_.mutex());
  return joined_.summary();
}

void StepSum::forget() {
  const std::lock_guard<std::mutex> lock(all_.mutex());
  joined_.forget();
}

void StepSum::close() {
  registration_.close();
  Finished finished;
  {
    const std::lock_guard<std::mutex> lock(all_.mutex());
    if (is_under_way() && failure_.empty()) {
      fail(what_ + " was closed while a step of it was in progress.", finished);
    }
    if (failure_.empty()) failure_ = "This is the end of " + what_ + ": nothing can follow it.";
  }
  for (const auto& [done, error] : finished) done(error);
  registration_.end();
  all_.remove(this);
  // A step that ended half-way has left messages, to which MPI may still write, and other ranks
  // that read the shared memory.
  if (is_under_way()) {
    keep_forever(std::move(shared_memory_));
    keep_forever(std::move(schedule_));
  }
  shared_memory_.reset();
  schedule_.reset();
  data_.reset();
  zeros_ = {};
  gpu_.close();
}

}  // namespace easyddl
