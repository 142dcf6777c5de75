#include "collectives/communicator.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <utility>

#include "algorithms/bruck.h"
#include "arrays/arithmetic.h"
#include "collectives/message_tags.h"
#include "common/agreement.h"
#include "common/check.h"
#include "common/keep_forever.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Within a host a chunk should stay in cache; across hosts a shard of it is one message, which
// should be long enough for the wire's latency not to matter.
constexpr size_t kChunkOnOneHost = 256 << 10;
constexpr size_t kChunkOnSeveral = 1 << 20;

// A chunk's slot is in use for as many phases as it has stages, and may be written again two later.
// Powers of two, since phases are counted modulo 2^32.
constexpr uint32_t kSlotsOnOneHost = 4;
constexpr uint32_t kSlotsOnSeveral = 8;

// Below this every rank reads all of the others' data: one wait instead of two.
constexpr size_t kAtOnce = 8 << 10;

// From here on ranks of one host reach into each other's memory, where the kernel lets them: below
// it, the calls take longer than the copies that they save. Among many ranks each block takes as
// many calls again, and the shared memory is faster up to some megabytes, by measurement.
constexpr size_t kDirectlyByTwo = 64 << 10;
constexpr size_t kDirectlyByMore = 8 << 20;

// Shards begin at multiples of this, so that no two ranks write to one cache line.
constexpr size_t kLine = 128;

constexpr uint32_t kAgreed = 1;

// A slot need not be longer than what is to be carried.
size_t slot_bytes_for(size_t most_bytes, const Topology& topology) {
  const size_t chunk = topology.num_nodes > 1 ? kChunkOnSeveral : kChunkOnOneHost;
  return std::clamp(most_bytes, kAtOnce, chunk);
}

// Of an exception of Python's the message alone, without the traceback.
std::string first_paragraph(const std::string& text) { return text.substr(0, text.find("\n\n")); }

// What this thread waits in while it looks after other things, such as Python's signal handlers.
thread_local const std::string* t_interrupted = nullptr;

class Interruption {
 public:
  explicit Interruption(const std::string& wait) : before_(t_interrupted) { t_interrupted = &wait; }
  ~Interruption() { t_interrupted = before_; }
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

 private:
  const std::string* before_;
};

// The others cannot know at which moment this rank's signal came; and the collective that it
// interrupted holds its communicator.
void refuse_in_handlers(const Fingerprint& fingerprint) {
  if (t_interrupted == nullptr) return;
  throw Error("A signal handler called " + fingerprint.text + " while its thread waits in " +
              *t_interrupted +
              ". A handler must not call collectives: set a flag in it, and act on that at the end "
              "of the step, where all ranks come. To stop a fit, set model.stop_training = True; "
              "save when it has returned, or in a callback.");
}

}  // namespace

// One collective on a communicator: holds its lock, counts it, and tells all ranks if it has ended
// before all have come to the same point.
class Communicator::Call {
 public:
  Call(Communicator& communicator, const Fingerprint& fingerprint, const char* name,
       size_t bytes = 0)
      : communicator_(accessible(communicator, fingerprint)),
        lock_(communicator.mutex_),
        name_(name),
        bytes_(bytes) {
    const std::string failure = communicator_.failure();
    if (!failure.empty()) {
      throw Error("An earlier collective ended half-way, and no other can follow it: " + failure +
                  " This call itself is not at fault: " + fingerprint.text + ".");
    }
    communicator_.fingerprint_ = &fingerprint;
    communicator_.number_ = communicator_.world_.exit_protocol().begin(communicator_.line_);
    communicator_.broken_ = true;
    if (Trace::on() != nullptr) begin_ = Trace::now();
  }
  ~Call() {
    trace();
    communicator_.fingerprint_ = nullptr;
    if (communicator_.slow_ == communicator_.number_)
      communicator_.world_.stall_inspector().forget(communicator_.line_);
    communicator_.world_.exit_protocol().end(communicator_.line_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void done() { communicator_.broken_ = false; }

  void fail(const std::string& reason) {
    communicator_.goes_elsewhere_ = false;
    // Where all ranks have failed alike, the communicator can be used again.
    if (communicator_.broken_) communicator_.give_up(name_ + (" ended half-way: " + reason));
  }

 private:
  static Communicator& accessible(Communicator& communicator, const Fingerprint& fingerprint) {
    refuse_in_handlers(fingerprint);
    return communicator;
  }

  // By `communicator` and `number` the ranks' spans of one collective are told to belong together.
  void trace() {
    if (Trace::on() == nullptr || begin_ == 0) return;
    Trace::on()->add(name_, begin_, Trace::now(),
                     {{"channel", static_cast<int64_t>(communicator_.line_)},
                      {"number", static_cast<int64_t>(communicator_.number_)},
                      {"bytes", static_cast<int64_t>(bytes_)}},
                     &communicator_.fingerprint_->text);
  }

  Communicator& communicator_;
  std::lock_guard<std::mutex> lock_;
  const char* name_;
  size_t bytes_;
  int64_t begin_ = 0;
};

Communicator::Communicator(World& world, size_t most_bytes)
    : world_(world),
      topology_(world.topology()),
      line_(world.exit_protocol().add_communicator()),
      tag_(first_tag(world.comm(), line_)),
      local_(topology_, slot_bytes_for(most_bytes, topology_),
             topology_.num_nodes > 1 ? kSlotsOnSeveral : kSlotsOnOneHost),
      direct_(topology_, local_),
      remote_(topology_, world.inter_host_algorithm()),
      idle_([this] { idle(); }),
      sources_(static_cast<size_t>(topology_.local_size)),
      schedules_{Schedule(tag_), Schedule(tag_ + 1), Schedule(tag_ + 2), Schedule(tag_ + 3)},
      control_schedule_(tag_ + 4),
      leaving_(ChunkStream::Direction::send, world.comm(), tag_ + 5),
      coming_(ChunkStream::Direction::receive, world.comm(), tag_ + 5) {}

Communicator::~Communicator() = default;

std::unique_ptr<Communicator> Communicator::open(World& world, size_t most_bytes) {
  world.meet("the making of a communicator");
  std::unique_ptr<Communicator> communicator;
  all_or_none(world.comm(),
              [&] { communicator = std::make_unique<Communicator>(world, most_bytes); });
  return communicator;
}

void Communicator::retire(std::unique_ptr<Communicator> communicator) {
  // A collective that ended half-way has left messages behind.
  if (communicator != nullptr && communicator->broken_) keep_forever(std::move(communicator));
}

// Why nothing can follow on this communicator; empty if something can.
std::string Communicator::failure() const {
  const std::string first = world_.stall_inspector().failure_of(line_);
  if (!first.empty()) return first;
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return own_failure_;
}

bool Communicator::is_broken() const { return broken_ || !failure().empty(); }

// Not under the communicator's lock, which another thread may hold for as long as its collective
// takes.
void Communicator::give_up(const std::string& why) {
  const std::string reason = first_paragraph(why);
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (own_failure_.empty()) own_failure_ = reason;
  }
  world_.stall_inspector().announce_failure(line_, reason);
}

template <class Run>
void Communicator::collective(const char* name, size_t bytes, const Fingerprint& fingerprint,
                              Run run) {
  Call call(*this, fingerprint, name, bytes);
  try {
    run();
  } catch (const std::exception& error) {
    call.fail(error.what());
    throw;
  } catch (...) {  // a thread that is ended while it waits
    call.fail("its thread was ended.");
    throw;
  }
  call.done();
}

void Communicator::idle() {
  if (user_idle_) {
    const Interruption interruption(fingerprint_->text);
    user_idle_();
  }
  world_.exit_protocol().check(line_, number_, fingerprint_->text, topology_);
  if (slow_ != number_) {
    slow_ = number_;
    slow_since_ = std::chrono::steady_clock::now();
  }
  world_.stall_inspector().check(line_, number_, fingerprint_->text, slow_since_, goes_elsewhere_);
}

int Communicator::owners() const {
  return several_hosts() ? topology_.num_leaders : topology_.local_size;
}

Communicator::Chunk Communicator::shard(const Chunk& chunk, int owner) const {
  const size_t bytes = chunk.end - chunk.begin;
  const size_t n = static_cast<size_t>(owners()), i = static_cast<size_t>(owner);
  const size_t each = ((bytes + n - 1) / n + kLine - 1) / kLine * kLine;
  return {chunk.begin + std::min(bytes, i * each), chunk.begin + std::min(bytes, (i + 1) * each)};
}

Communicator::Chunk Communicator::chunk_at(size_t index, size_t bytes) const {
  const size_t size = local_.slot_bytes();
  return {index * size, std::min(bytes, (index + 1) * size)};
}

void Communicator::pipeline(size_t bytes, const Fingerprint& fingerprint,
                            const std::vector<Stage>& stages) {
  const size_t chunks = (bytes + local_.slot_bytes() - 1) / local_.slot_bytes();
  const uint32_t first = local_.phase();
  // With several hosts a third phase tells all members what the leaders heard of the others.
  const size_t least = several_hosts() ? 3 : 2;
  const size_t phases = std::max(chunks + stages.size() - 1, least);
  for (size_t k = 0; k < phases; ++k) {
    const uint32_t phase = local_.phase();
    const auto take = [&](size_t stage) {
      if (k < stage || k - stage >= chunks) return;
      const Chunk chunk = chunk_at(k - stage, bytes);
      const Span span(stages[stage].name, chunk.end - chunk.begin);
      stages[stage].run(chunk, phase - static_cast<uint32_t>(stage));
    };
    if (k == 0) local_.note(local_.rank(), phase) = {fingerprint.hash, 0};
    take(0);
    wait_for_phase(phase - 1);
    if (k == 1) {
      if (several_hosts()) {
        compare_hosts(first, fingerprint);
      } else if (!members_agree(first, fingerprint.hash)) {
        disagree(fingerprint);
      }
    }
    if (k == 2 && several_hosts() && local_.note(0, phase - 1).verdict != kAgreed) {
      disagree(fingerprint);
    }
    // A leader that has just heard of a disagreement must not send data of another length.
    const bool agreed = !several_hosts() || k != 1 || !is_leader() ||
                        local_.note(local_.rank(), phase).verdict == kAgreed;
    for (size_t stage = 1; agreed && stage < stages.size(); ++stage) take(stage);
    local_.end_phase();
  }
}

// Moves on what is under way across the hosts. True if nothing is.
bool Communicator::advance_schedules() {
  bool all_done = true;
  for (Schedule& schedule : schedules_) all_done = schedule.advance() && all_done;
  return all_done;
}

void Communicator::complete(Schedule& schedule, const char* name) {
  const Span span(name);
  const auto done = [&] {
    advance_schedules();
    return schedule.advance();
  };
  poll(done, topology_.cores_are_shared, idle_);
}

// A rank whose shards cross the hosts meanwhile must not sleep: they would wait for it.
void Communicator::wait_for_phase(uint32_t phase) {
  if (advance_schedules()) return local_.wait(phase, idle_);
  const Span span("wait in the host");
  const auto ended = [&] {
    advance_schedules();
    return local_.have_all_ended(phase);
  };
  poll(ended, topology_.cores_are_shared, idle_);
}

bool Communicator::members_agree(uint32_t phase, uint64_t hash) {
  for (int member = 0; member < local_.size(); ++member) {
    if (local_.note(member, phase).fingerprint != hash) return false;
  }
  return true;
}

void Communicator::compare_hosts(uint32_t phase, const Fingerprint& fingerprint) {
  if (!is_leader()) return;
  const uint64_t mine = members_agree(phase, fingerprint.hash) ? fingerprint.hash : 0;
  const std::vector<uint64_t> all = all_hosts(mine);
  const bool agreed =
      std::all_of(all.begin(), all.end(), [&](uint64_t hash) { return hash != 0 && hash == mine; });
  local_.note(local_.rank(), local_.phase()).verdict = agreed ? kAgreed : 0;
}

// Every host's value, by its number. Among the leaders of one shard.
std::vector<uint64_t> Communicator::all_hosts(uint64_t value) {
  remote_.plan_all_gather(control_schedule_, value);
  complete(control_schedule_);
  std::vector<uint64_t> all(static_cast<size_t>(topology_.num_nodes));
  std::memcpy(all.data(), control_schedule_.data.data(), all.size() * sizeof value);
  return all;
}

// Every rank's value, by its number.
std::vector<int64_t> Communicator::values_of_all(int64_t value) {
  add_bruck_all_gather(control_schedule_, world_.comm(), topology_.rank, topology_.size, &value,
                       sizeof value);
  complete(control_schedule_, "wait for all ranks");
  std::vector<int64_t> all(static_cast<size_t>(topology_.size));
  copy_gathered(control_schedule_, topology_.rank, topology_.size, all.data(), sizeof value);
  return all;
}

void Communicator::disagree(const Fingerprint& fingerprint) {
  const std::vector<int64_t> lengths = values_of_all(static_cast<int64_t>(fingerprint.text.size()));
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::string joined(static_cast<size_t>(total), '\0');
  gather_arrays(fingerprint.text.data(), joined.data(), lengths);
  std::vector<std::string> texts;
  size_t start = 0;
  for (int64_t length : lengths) {
    texts.push_back(joined.substr(start, static_cast<size_t>(length)));
    start += static_cast<size_t>(length);
  }
  broken_ = false;  // all ranks are here, in the same phase: the communicator can be used again
  throw Error(describe_disagreement(texts));
}

// All ranks come, and agree that they are in the same collective.
void Communicator::rendezvous(const Fingerprint& fingerprint) {
  const Stage nothing{"nothing", [](const Chunk&, uint32_t) {}};
  pipeline(0, fingerprint, {nothing, nothing, nothing});
}

void Communicator::barrier(const Fingerprint& fingerprint) {
  collective("barrier", 0, fingerprint, [&] { rendezvous(fingerprint); });
}

void Communicator::allreduce(const SegmentList& data, DType dtype, Op op,
                             const Fingerprint& fingerprint) {
  collective("allreduce", data.bytes(), fingerprint, [&] {
    if (topology_.size == 1) {
      data.for_each(0, data.bytes(), [](const uint8_t* in, uint8_t* out, size_t, size_t bytes) {
        std::memmove(out, in, bytes);
      });
    } else if (!several_hosts() && data.bytes() <= kAtOnce) {
      reduce_at_once(data, dtype, op, fingerprint);
    } else if (direct_.is_possible() && data.bytes() >= least_direct_bytes()) {
      reduce_directly(data, dtype, op, fingerprint);
    } else {
      pipeline(data.bytes(), fingerprint, stages_of_allreduce(data, dtype, op));
    }
  });
}

std::vector<Communicator::Stage> Communicator::stages_of_allreduce(const SegmentList& data,
                                                                   DType dtype, Op op) {
  const auto copy_in = [&](const Chunk& chunk, uint32_t phase) {
    // My own shard is read where it is; only what others reduce needs copying.
    const Chunk mine = is_leader() ? shard(chunk, local_.rank()) : Chunk{chunk.end, chunk.end};
    uint8_t* slot = local_.slot(local_.rank(), phase);
    data.copy_in(chunk.begin, mine.begin, slot);
    data.copy_in(mine.end, chunk.end, slot + (mine.end - chunk.begin));
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t phase) {
    for (int owner = 0; owner < owners(); ++owner) {
      if (owner == local_.rank()) continue;
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(owner, phase) + (theirs.begin - chunk.begin));
    }
  };
  std::vector<Stage> stages{{"copy in", copy_in}};
  if (several_hosts()) {
    for (Stage& stage : inter_host_stages(data, dtype, op)) stages.push_back(std::move(stage));
  } else {
    stages.push_back({"reduce", [&data, dtype, op, this](const Chunk& chunk, uint32_t phase) {
                        reduce_own_shard(data, chunk, phase, dtype, op);
                      }});
  }
  stages.push_back({"copy out", copy_out});
  return stages;
}

// One phase: all write, all wait for all, all reduce everything.
void Communicator::reduce_at_once(const SegmentList& data, DType dtype, Op op,
                                  const Fingerprint& fingerprint) {
  const uint32_t phase = local_.phase();
  local_.note(local_.rank(), phase) = {fingerprint.hash, 0};
  {
    const Span span("copy in", data.bytes());
    data.copy_in(0, data.bytes(), local_.slot(local_.rank(), phase));
  }
  local_.wait(phase - 1, idle_);
  local_.end_phase();
  local_.wait(phase, idle_);
  if (!members_agree(phase, fingerprint.hash)) disagree(fingerprint);
  const Span span("reduce", data.bytes());
  data.for_each(0, data.bytes(), [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
    accumulate_and_finish(out, sources(nullptr, offset, phase), sources_.size(),
                          bytes / size_of(dtype), dtype, op, topology_.size);
  });
}

size_t Communicator::least_direct_bytes() const {
  return topology_.local_size == 2 ? kDirectlyByTwo : kDirectlyByMore;
}

// One phase, for the ranks to come and to offer their arrays. Where some cannot be reached, such as
// a device's memory, all take the shared memory.
void Communicator::reduce_directly(const SegmentList& data, DType dtype, Op op,
                                   const Fingerprint& fingerprint) {
  const uint32_t phase = local_.phase();
  local_.note(local_.rank(), phase) = {fingerprint.hash, 0};
  DirectLevel::Offer offer(direct_, data, phase);
  local_.wait(phase - 1, idle_);
  local_.end_phase();
  local_.wait(phase, idle_);
  if (!members_agree(phase, fingerprint.hash)) {
    offer.close();  // nobody takes it
    disagree(fingerprint);
  }
  if (direct_.all_offer(phase)) {
    direct_.reduce(data, phase, dtype, op, topology_.size, idle_);
  } else {
    offer.close();  // the shared memory's slots are written anew
    pipeline(data.bytes(), fingerprint, stages_of_allreduce(data, dtype, op));
  }
  offer.close();
}

// Where each member's data lies, from `offset` of the chunk on: `own` is where this rank's
// does, or null if it too lies in its slot.
const void* const* Communicator::sources(const uint8_t* own, size_t offset, uint32_t phase) {
  for (int member = 0; member < local_.size(); ++member) {
    const bool elsewhere = own != nullptr && member == local_.rank();
    sources_[static_cast<size_t>(member)] = elsewhere ? own : local_.slot(member, phase) + offset;
  }
  return sources_.data();
}

// Reduces my shard into my own slot, where nothing was copied in, and into my own result.
void Communicator::reduce_own_shard(const SegmentList& data, const Chunk& chunk, uint32_t phase,
                                    DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  uint8_t* total = local_.slot(local_.rank(), phase) + start;
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t* out, size_t offset, size_t bytes) {
        accumulate_and_finish(total + offset, sources(in, start + offset, phase), sources_.size(),
                              bytes / size_of(dtype), dtype, op, topology_.size);
        std::memcpy(out, total + offset, bytes);
      });
}

// How the shards of a chunk cross the hosts: in one stage if they are all there is, else in three,
// so that those of three chunks are under way at a time.
std::vector<Communicator::Stage> Communicator::inter_host_stages(const SegmentList& data,
                                                                 DType dtype, Op op) {
  const DType wide = accumulator_of(dtype);
  const auto by_leaders = [this](const char* name, auto run) -> Stage {
    if (!is_leader()) return {name, [](const Chunk&, uint32_t) {}};
    return {name, run};
  };
  const auto set_out = [=, &data](const Chunk& chunk, uint32_t phase) {
    reduce_within(schedule(phase), data, chunk, phase, dtype, op);
    remote_.plan_allreduce(schedule(phase), wide, op);
    schedule(phase).advance();
  };
  const auto arrive = [=, &data](const Chunk& chunk, uint32_t phase) {
    complete(schedule(phase));
    spread(schedule(phase), data, chunk, phase, dtype, op);
  };
  if (data.bytes() <= local_.slot_bytes()) {
    return {by_leaders("reduce", [=](const Chunk& chunk, uint32_t phase) {
      const Span span("allreduce across hosts", chunk.end - chunk.begin);
      set_out(chunk, phase);
      arrive(chunk, phase);
    })};
  }
  const auto go_on = [this](const Chunk&, uint32_t) { advance_schedules(); };
  return {by_leaders("reduce", set_out), by_leaders("cross the hosts", go_on),
          by_leaders("collect", arrive)};
}

// The partial result of this host crosses the others before it is rounded.
void Communicator::reduce_within(Schedule& schedule, const SegmentList& data, const Chunk& chunk,
                                 uint32_t phase, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  schedule.count = (mine.end - mine.begin) / size_of(dtype);
  schedule.data.resize((mine.end - mine.begin) * widened);
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t*, size_t offset, size_t bytes) {
        accumulate(schedule.data.data() + offset * widened, sources(in, start + offset, phase),
                   sources_.size(), bytes / size_of(dtype), dtype, op);
      });
}

// To this rank's own result, and to the other members if there are any.
void Communicator::spread(const Schedule& schedule, const SegmentList& data, const Chunk& chunk,
                          uint32_t phase, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  uint8_t* total = local_.slot(local_.rank(), phase) + (mine.begin - chunk.begin);
  data.for_each(mine.begin, mine.end,
                [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                  finish(out, schedule.data.data() + offset * widened, bytes / size_of(dtype),
                         dtype, op, topology_.size);
                  if (local_.size() > 1) std::memcpy(total + offset, out, bytes);
                });
}

void Communicator::take_part(const char* name, size_t bytes, const Fingerprint& fingerprint,
                             const std::function<void(const Idle&)>& run) {
  collective(name, bytes, fingerprint, [&] {
    goes_elsewhere_ = true;
    run(idle_);
    goes_elsewhere_ = false;
  });
}

// Where MPI takes a shard from the GPU, it is the receiver that multiplies.
std::vector<double> Communicator::factors_of(const HostShard& shard) {
  std::vector<double> factors;
  if (!shard.is_scaled || shard.on_gpu == nullptr) return factors;
  uint64_t mine = 0;
  std::memcpy(&mine, &shard.factor, sizeof mine);
  for (uint64_t bits : all_hosts(mine)) {
    std::memcpy(&factors.emplace_back(), &bits, sizeof bits);
  }
  return factors;
}

void Communicator::plan(Schedule& schedule, const HostShard& shard, size_t chunk,
                        const std::vector<double>& factors) {
  const size_t begin = chunk * shard.chunk_bytes, unit = size_of(shard.dtype);
  const size_t count = (std::min(shard.bytes, begin + shard.chunk_bytes) - begin) / unit;
  uint8_t* const data = shard.data + begin;
  if (shard.on_gpu != nullptr) {
    uint8_t* const mine = data + part_of(count).begin * unit;
    return remote_.plan_allreduce_on_gpu(schedule, shard.on_gpu + begin, count, mine, shard.dtype,
                                         shard.op, factors);
  }
  const DType wide = accumulator_of(shard.dtype);
  if (shard.is_scaled) scale(data, data, count, shard.dtype, shard.factor);
  schedule.count = count;
  schedule.data.resize(count * size_of(wide));
  const void* const source = data;
  accumulate(schedule.data.data(), &source, 1, count, shard.dtype, shard.op);
  remote_.plan_allreduce(schedule, wide, shard.op);
  schedule.add("round", [data, count, &schedule, dtype = shard.dtype, op = shard.op] {
    finish(data, schedule.data.data(), count, dtype, op, 1);
  });
}

// Like the stages of an allreduce, but at the pace of what the shard comes and goes by.
void Communicator::reduce_across_hosts(const HostShard& shard) {
  const size_t chunks = (shard.bytes + shard.chunk_bytes - 1) / shard.chunk_bytes;
  const std::vector<double> factors = factors_of(shard);
  size_t set_out = 0, arrived = 0;
  const auto move = [&] {
    bool has_moved = false;
    advance_schedules();
    while (set_out < chunks && set_out - arrived < kSchedules && shard.has_come(set_out)) {
      Schedule& next = schedule(static_cast<uint32_t>(set_out));
      plan(next, shard, set_out, factors);
      next.advance();
      ++set_out;
      has_moved = true;
    }
    while (arrived < set_out && !schedule(static_cast<uint32_t>(arrived)).is_under_way()) {
      shard.on_reduced(arrived);
      ++arrived;
      has_moved = true;
    }
    return has_moved;
  };
  while (arrived < chunks) shard.wait(move);
}

void Communicator::broadcast(const SegmentList& data, int root, const Fingerprint& fingerprint) {
  collective("broadcast", data.bytes(), fingerprint,
             [&] { carry_out_broadcast(data, root, fingerprint); });
}

void Communicator::carry_out_broadcast(const SegmentList& data, int root,
                                       const Fingerprint& fingerprint) {
  const int root_node = topology_.node_of[static_cast<size_t>(root)];
  const bool with_root = root_node == topology_.node_rank;
  const int root_member = static_cast<int>(
      std::count(topology_.node_of.begin(), topology_.node_of.begin() + root, root_node));
  const auto home = [&](int owner) { return with_root ? root_member : owner; };
  const auto copy_in = [&](const Chunk& chunk, uint32_t phase) {
    if (topology_.rank != root) return;
    data.copy_in(chunk.begin, chunk.end, local_.slot(local_.rank(), phase));
  };
  const auto cross = [&](const Chunk& chunk, uint32_t phase) {
    if (!several_hosts() || !is_leader()) return;
    const Chunk mine = shard(chunk, local_.rank());
    uint8_t* slot = local_.slot(home(local_.rank()), phase);
    remote_.plan_broadcast(schedule(phase), slot + (mine.begin - chunk.begin),
                           mine.end - mine.begin, root_node);
    complete(schedule(phase));
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t phase) {
    if (topology_.rank == root) return;
    for (int owner = 0; owner < owners(); ++owner) {
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(home(owner), phase) + (theirs.begin - chunk.begin));
    }
  };
  pipeline(data.bytes(), fingerprint,
           {{"copy in", copy_in}, {"cross the hosts", cross}, {"copy out", copy_out}});
}

std::vector<int64_t> Communicator::gather_values(int64_t value, const Fingerprint& fingerprint) {
  std::vector<int64_t> all;
  collective("gather values", sizeof value * static_cast<size_t>(topology_.size), fingerprint, [&] {
    rendezvous(fingerprint);
    all = values_of_all(value);
  });
  return all;
}

// Between the halves of a collective whose first tells how much memory the second needs. The second
// has a fingerprint of its own, so that it never meets a first half. A rank that has no memory
// takes part in the second too, saying so: all fail alike then, and can go on.
void* Communicator::memory_of_all(const Fingerprint& fingerprint,
                                  const std::vector<int64_t>& counts, const Allocate& allocate) {
  std::string failure;
  void* memory = nullptr;
  try {
    const Interruption interruption(fingerprint.text);  // Python may act on a signal in it
    memory = allocate(counts);
  } catch (const Error& error) {
    failure = error.what();
  } catch (const std::bad_alloc&) {
    failure = "out of memory";
  }
  const Fingerprint second(fingerprint.text + (failure.empty()
                                                   ? ", its second half"
                                                   : ", which failed there: " + failure));
  fingerprint_ = &second;
  struct Restore {  // `second` ends here
    const Fingerprint*& current;
    const Fingerprint* before;
    ~Restore() { current = before; }
  } restore{fingerprint_, &fingerprint};
  rendezvous(second);
  if (!failure.empty()) {  // on all ranks, and in the same words
    broken_ = false;
    throw Error(failure);
  }
  return memory;
}

void Communicator::all_gather(const void* in, int64_t count, size_t unit_bytes,
                              const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("all-gather", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    std::vector<int64_t> counts = values_of_all(count);
    void* const out = memory_of_all(fingerprint, counts, allocate);
    for (int64_t& each : counts) each *= static_cast<int64_t>(unit_bytes);
    gather_arrays(in, out, counts);
  });
}

void Communicator::all_gather(const void* in, void* out, const std::vector<int64_t>& counts,
                              size_t unit_bytes, const Fingerprint& fingerprint) {
  std::vector<int64_t> bytes = counts;
  for (int64_t& each : bytes) each *= static_cast<int64_t>(unit_bytes);
  collective("all-gather", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    gather_arrays(in, out, bytes);
  });
}

void Communicator::all_to_all(const void* in, const std::vector<int64_t>& sends, size_t unit_bytes,
                              const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("all-to-all", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    std::vector<int64_t> receives(sends.size()), leaving = sends;
    const std::vector<int64_t> one_each(sends.size(), sizeof(int64_t));
    exchange_arrays(sends.data(), receives.data(), one_each, one_each);
    void* const out = memory_of_all(fingerprint, receives, allocate);
    for (int64_t& each : leaving) each *= static_cast<int64_t>(unit_bytes);
    for (int64_t& each : receives) each *= static_cast<int64_t>(unit_bytes);
    exchange_arrays(in, out, leaving, receives);
  });
}

void Communicator::broadcast_unknown(const void* in, int64_t bytes, int root,
                                     const Fingerprint& fingerprint, const Allocate& allocate) {
  collective("broadcast", 0, fingerprint, [&] {
    rendezvous(fingerprint);
    const int64_t length = values_of_all(bytes)[static_cast<size_t>(root)];
    void* const out = memory_of_all(fingerprint, {length}, allocate);
    const void* const from = topology_.rank == root ? in : out;
    const Segment whole{static_cast<const uint8_t*>(from), static_cast<uint8_t*>(out),
                        static_cast<size_t>(length)};
    carry_out_broadcast(SegmentList({whole}), root, fingerprint);
  });
}

void Communicator::reduce_scatter(const void* in, void* out, size_t count, DType dtype, Op op,
                                  const Fingerprint& fingerprint) {
  const size_t part = count * size_of(dtype), size = static_cast<size_t>(topology_.size);
  const std::vector<int64_t> parts(size, static_cast<int64_t>(part));
  std::vector<uint8_t> inbox;
  collective("reduce-scatter", part * size, fingerprint, [&] {
    rendezvous(fingerprint);
    memory_of_all(fingerprint, parts, [&](const std::vector<int64_t>&) {
      inbox.resize(part * size);
      return inbox.data();
    });
    exchange_arrays(in, inbox.data(), parts, parts);
    std::vector<const void*> sources;
    for (size_t rank = 0; rank < size; ++rank) sources.push_back(inbox.data() + rank * part);
    accumulate_and_finish(out, sources.data(), size, count, dtype, op, topology_.size);
  });
}

namespace {

// Where each of the arrays begins that lie one after the other.
std::vector<size_t> starts_of(const std::vector<int64_t>& bytes) {
  std::vector<size_t> starts;
  size_t start = 0;
  for (int64_t each : bytes) {
    starts.push_back(start);
    start += static_cast<size_t>(each);
  }
  return starts;
}

// MPI and ChunkStream only read what they send.
uint8_t* writable(const void* data) {
  return const_cast<uint8_t*>(static_cast<const uint8_t*>(data));
}

}  // namespace

// Round a ring: each rank hands on what it has got, so that every array leaves a host once. The
// ranks of a host stand side by side in it.
void Communicator::gather_arrays(const void* in, void* out, const std::vector<int64_t>& bytes) {
  const int n = topology_.size;
  std::vector<int> ring(static_cast<size_t>(n));
  std::iota(ring.begin(), ring.end(), 0);
  std::stable_sort(ring.begin(), ring.end(), [this](int a, int b) {
    return topology_.node_of[static_cast<size_t>(a)] < topology_.node_of[static_cast<size_t>(b)];
  });
  const int place =
      static_cast<int>(std::find(ring.begin(), ring.end(), topology_.rank) - ring.begin());
  const auto member = [&](int offset) {
    return ring[static_cast<size_t>((place + offset + n) % n)];
  };
  const std::vector<size_t> starts = starts_of(bytes);
  const auto array = [&](int peer, int owner) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(owner);
    return {peer, static_cast<uint8_t*>(out) + starts[i], static_cast<size_t>(bytes[i])};
  };
  const ChunkStream::Array own = array(member(1), topology_.rank);
  if (own.bytes > 0 && own.data != in) std::memcpy(own.data, in, own.bytes);
  std::vector<ChunkStream::Array> leaving, coming;
  for (int round = 0; round + 1 < n; ++round) {
    leaving.push_back(array(member(1), member(-round)));
    coming.push_back(array(member(-1), member(-round - 1)));
  }
  travel(std::move(leaving), std::move(coming), own.bytes);
}

// Straight from each rank to each, in rounds in which all have other partners.
void Communicator::exchange_arrays(const void* in, void* out, const std::vector<int64_t>& sends,
                                   const std::vector<int64_t>& receives) {
  const int n = topology_.size;
  const std::vector<size_t> from = starts_of(sends), to = starts_of(receives);
  const auto leaving_to = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, writable(in) + from[i], static_cast<size_t>(sends[i])};
  };
  const auto coming_from = [&](int rank) -> ChunkStream::Array {
    const size_t i = static_cast<size_t>(rank);
    return {rank, static_cast<uint8_t*>(out) + to[i], static_cast<size_t>(receives[i])};
  };
  const ChunkStream::Array own = leaving_to(topology_.rank);
  if (own.bytes > 0) std::memcpy(coming_from(topology_.rank).data, own.data, own.bytes);
  std::vector<ChunkStream::Array> leaving, coming;
  for (int round = 1; round < n; ++round) {
    leaving.push_back(leaving_to((topology_.rank + round) % n));
    coming.push_back(coming_from((topology_.rank + n - round) % n));
  }
  travel(std::move(leaving), std::move(coming), SIZE_MAX);
}

// Where what leaves is what has come before, only `own` bytes of it are there from the beginning.
void Communicator::travel(std::vector<ChunkStream::Array> leaving,
                          std::vector<ChunkStream::Array> coming, size_t own) {
  const Span span("wait for all ranks");
  leaving_.begin(std::move(leaving));
  coming_.begin(std::move(coming));
  const auto done = [&] {
    const bool all_came = coming_.advance();
    const bool all_left = leaving_.advance(own == SIZE_MAX ? own : own + coming_.done());
    return all_came && all_left;
  };
  poll(done, topology_.cores_are_shared, idle_);
  leaving_.release();
  coming_.release();
}

}  // namespace easyddl
