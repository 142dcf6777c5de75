#include "channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "check.h"
#include "gpu_level.h"
#include "reduce.h"
#include "trace.h"

namespace easyddl {
namespace {

// Within a host a chunk should stay in cache; across hosts a shard of it is one message, which
// should be long enough for the wire's latency not to matter.
constexpr size_t kChunkOnOneHost = 256 << 10;
constexpr size_t kChunkOnSeveral = 1 << 20;

// A chunk's slot is in use for as many turns as it has stages, and may be written again two later.
// Powers of two, since turns are counted modulo 2^32.
constexpr uint32_t kSlotsOnOneHost = 4;
constexpr uint32_t kSlotsOnSeveral = 8;

// Below this every rank reads all of the others' data: one wait instead of two.
constexpr size_t kAtOnce = 8 << 10;

// Shards begin at multiples of this, so that no two ranks write to one cache line.
constexpr size_t kLine = 128;

constexpr uint32_t kAgreed = 1;

}  // namespace

// One collective on a channel: holds its lock, counts it, and marks the channel broken if it
// ends by an exception before all ranks have come to the same point.
class Channel::Call {
 public:
  Call(Channel& channel, const Signature& signature, const char* name, size_t bytes = 0)
      : channel_(channel), lock_(channel.mutex_), name_(name), bytes_(bytes) {
    if (channel_.broken_) {
      throw Error("An earlier collective on this channel failed half-way: no other can follow " +
                  std::string("it. This is the failed call's fault, not that of ") +
                  signature.text + ".");
    }
    channel_.signature_ = &signature;
    channel_.number_ = channel_.world_.farewell().begin(channel_.line_);
    channel_.broken_ = true;
    if (Trace::on() != nullptr) begin_ = Trace::now();
  }
  ~Call() {
    trace();
    channel_.signature_ = nullptr;
    if (channel_.slow_ == channel_.number_) channel_.world_.stalls().forget(channel_.line_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  void done() { channel_.broken_ = false; }

 private:
  // By `channel` and `number` the ranks' spans of one collective are told to belong together.
  void trace() {
    if (Trace::on() == nullptr || begin_ == 0) return;
    Trace::on()->add(name_, begin_, Trace::now(),
                     {{"channel", static_cast<int64_t>(channel_.line_)},
                      {"number", static_cast<int64_t>(channel_.number_)},
                      {"bytes", static_cast<int64_t>(bytes_)}},
                     &channel_.signature_->text);
  }

  Channel& channel_;
  std::lock_guard<std::mutex> lock_;
  const char* name_;
  size_t bytes_;
  int64_t begin_ = 0;
};

Channel::Channel(World& world)
    : world_(world),
      layout_(world.layout()),
      comm_(Comm::duplicate(world.comm())),
      local_(layout_, layout_.num_nodes > 1 ? kChunkOnSeveral : kChunkOnOneHost,
             layout_.num_nodes > 1 ? kSlotsOnSeveral : kSlotsOnOneHost),
      remote_(layout_, world.route()),
      line_(world.farewell().add_channel()),
      idle_([this] { idle(); }),
      sources_(static_cast<size_t>(layout_.local_size)) {}

Channel::~Channel() = default;

std::string Channel::name_of(size_t rank) const {
  return "Rank " + std::to_string(rank) + " on host " + layout_.host_of[rank];
}

GpuLevel& Channel::gpu_level() {
  if (gpu_level_ == nullptr) gpu_level_ = std::make_unique<GpuLevel>(*this);
  return *gpu_level_;
}

void Channel::idle() {
  if (user_idle_) user_idle_();
  world_.farewell().check(line_, number_, signature_->text, layout_);
  if (slow_ != number_) {
    slow_ = number_;
    slow_since_ = std::chrono::steady_clock::now();
  }
  world_.stalls().check(line_, number_, signature_->text, slow_since_, goes_elsewhere_);
}

int Channel::owners() const { return several_hosts() ? layout_.num_carriers : layout_.local_size; }

Channel::Chunk Channel::shard(const Chunk& chunk, int owner) const {
  const size_t bytes = chunk.end - chunk.begin;
  const size_t n = static_cast<size_t>(owners()), i = static_cast<size_t>(owner);
  const size_t each = ((bytes + n - 1) / n + kLine - 1) / kLine * kLine;
  return {chunk.begin + std::min(bytes, i * each), chunk.begin + std::min(bytes, (i + 1) * each)};
}

Channel::Chunk Channel::chunk_at(size_t index, size_t bytes) const {
  const size_t size = local_.slot_bytes();
  return {index * size, std::min(bytes, (index + 1) * size)};
}

void Channel::pipeline(size_t bytes, const Signature& signature, const std::vector<Stage>& stages) {
  const size_t chunks = (bytes + local_.slot_bytes() - 1) / local_.slot_bytes();
  const uint32_t first = local_.turn();
  // With several hosts a third turn tells all members what the carriers heard of the others.
  const size_t least = several_hosts() ? 3 : 2;
  const size_t turns = std::max(chunks + stages.size() - 1, least);
  for (size_t k = 0; k < turns; ++k) {
    const uint32_t turn = local_.turn();
    const auto take = [&](size_t stage) {
      if (k < stage || k - stage >= chunks) return;
      const Chunk chunk = chunk_at(k - stage, bytes);
      const Span span(stages[stage].name, chunk.end - chunk.begin);
      stages[stage].run(chunk, turn - static_cast<uint32_t>(stage));
    };
    if (k == 0) local_.note(local_.rank(), turn) = {signature.hash, 0};
    take(0);
    wait_for_turn(turn - 1);
    if (k == 1) {
      if (several_hosts()) {
        compare_hosts(first, signature);
      } else if (!members_agree(first, signature.hash)) {
        disagree(signature);
      }
    }
    if (k == 2 && several_hosts() && local_.note(0, turn - 1).verdict != kAgreed) {
      disagree(signature);
    }
    // A carrier that has just heard of a disagreement must not send data of another length.
    const bool agreed = !several_hosts() || k != 1 || !carrier() ||
                        local_.note(local_.rank(), turn).verdict == kAgreed;
    for (size_t stage = 1; agreed && stage < stages.size(); ++stage) take(stage);
    local_.end_turn();
  }
}

// Moves on what is under way across the hosts. True if nothing is.
bool Channel::advance_crossings() {
  bool all_done = true;
  for (Crossing& crossing : crossings_) all_done = crossing.advance() && all_done;
  return all_done;
}

void Channel::complete(Crossing& crossing) {
  const Span span("wait across hosts");
  const auto done = [&] {
    advance_crossings();
    return !crossing.is_under_way();
  };
  poll(done, layout_.cores_are_shared, idle_);
}

// A rank whose shards cross the hosts meanwhile must not sleep: they would wait for it.
void Channel::wait_for_turn(uint32_t turn) {
  if (advance_crossings()) return local_.wait(turn, idle_);
  const Span span("wait in the host");
  const auto ended = [&] {
    advance_crossings();
    return local_.have_all_ended(turn);
  };
  poll(ended, layout_.cores_are_shared, idle_);
}

bool Channel::members_agree(uint32_t turn, uint64_t hash) {
  for (int member = 0; member < local_.size(); ++member) {
    if (local_.note(member, turn).signature != hash) return false;
  }
  return true;
}

void Channel::compare_hosts(uint32_t turn, const Signature& signature) {
  if (!carrier()) return;
  const uint64_t mine = members_agree(turn, signature.hash) ? signature.hash : 0;
  const std::vector<uint64_t> all = remote_.all_gather(mine, idle_);
  const bool agreed =
      std::all_of(all.begin(), all.end(), [&](uint64_t hash) { return hash != 0 && hash == mine; });
  local_.note(local_.rank(), local_.turn()).verdict = agreed ? kAgreed : 0;
}

void Channel::disagree(const Signature& signature) {
  std::vector<int> lengths(static_cast<size_t>(layout_.size));
  const int length = static_cast<int>(signature.text.size());
  MPI_Request request;
  EASYDDL_MPI(MPI_Iallgather, &length, 1, MPI_INT, lengths.data(), 1, MPI_INT, comm_.get(),
              &request);
  wait(request);
  std::vector<int> starts;
  int total = 0;
  for (int each : lengths) {
    starts.push_back(total);
    total += each;
  }
  std::string joined(static_cast<size_t>(total), '\0');
  EASYDDL_MPI(MPI_Iallgatherv, signature.text.data(), length, MPI_CHAR, joined.data(),
              lengths.data(), starts.data(), MPI_CHAR, comm_.get(), &request);
  wait(request);
  std::vector<std::string> texts;
  for (size_t rank = 0; rank < lengths.size(); ++rank) {
    texts.push_back(
        joined.substr(static_cast<size_t>(starts[rank]), static_cast<size_t>(lengths[rank])));
  }
  broken_ = false;  // all ranks are here, in the same turn: the channel can be used again
  throw Error(describe_disagreement(texts));
}

void Channel::wait(MPI_Request& request) {
  const Span span("wait for all ranks");
  wait_requests(&request, 1, layout_.cores_are_shared, idle_);
}

// All ranks come, and agree that they are in the same collective.
void Channel::rendezvous(const Signature& signature) {
  const Stage nothing{"nothing", [](const Chunk&, uint32_t) {}};
  pipeline(0, signature, {nothing, nothing, nothing});
}

void Channel::barrier(const Signature& signature) {
  Call call(*this, signature, "barrier");
  rendezvous(signature);
  call.done();
}

void Channel::allreduce(const Pieces& data, DType dtype, Op op, const Signature& signature) {
  Call call(*this, signature, "allreduce", data.bytes());
  if (layout_.size == 1) {
    data.for_each(0, data.bytes(), [](const uint8_t* in, uint8_t* out, size_t, size_t bytes) {
      std::memmove(out, in, bytes);
    });
  } else if (!several_hosts() && data.bytes() <= kAtOnce) {
    reduce_at_once(data, dtype, op, signature);
  } else {
    pipeline(data.bytes(), signature, stages_of_allreduce(data, dtype, op));
  }
  call.done();
}

std::vector<Channel::Stage> Channel::stages_of_allreduce(const Pieces& data, DType dtype, Op op) {
  const auto copy_in = [&](const Chunk& chunk, uint32_t turn) {
    // My own shard is read where it is; only what others reduce needs copying.
    const Chunk mine = carrier() ? shard(chunk, local_.rank()) : Chunk{chunk.end, chunk.end};
    uint8_t* slot = local_.slot(local_.rank(), turn);
    data.copy_in(chunk.begin, mine.begin, slot);
    data.copy_in(mine.end, chunk.end, slot + (mine.end - chunk.begin));
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t turn) {
    for (int owner = 0; owner < owners(); ++owner) {
      if (owner == local_.rank()) continue;
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(owner, turn) + (theirs.begin - chunk.begin));
    }
  };
  std::vector<Stage> stages{{"copy in", copy_in}};
  if (several_hosts()) {
    for (Stage& stage : crossing_stages(data, dtype, op)) stages.push_back(std::move(stage));
  } else {
    stages.push_back({"reduce", [&data, dtype, op, this](const Chunk& chunk, uint32_t turn) {
                        sum_pieces(data, chunk, turn, dtype, op);
                      }});
  }
  stages.push_back({"copy out", copy_out});
  return stages;
}

// One turn: all write, all wait for all, all reduce everything.
void Channel::reduce_at_once(const Pieces& data, DType dtype, Op op, const Signature& signature) {
  const uint32_t turn = local_.turn();
  local_.note(local_.rank(), turn) = {signature.hash, 0};
  {
    const Span span("copy in", data.bytes());
    data.copy_in(0, data.bytes(), local_.slot(local_.rank(), turn));
  }
  local_.wait(turn - 1, idle_);
  local_.end_turn();
  local_.wait(turn, idle_);
  if (!members_agree(turn, signature.hash)) disagree(signature);
  const Span span("reduce", data.bytes());
  data.for_each(0, data.bytes(), [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
    accumulate_and_finish(out, sources(nullptr, offset, turn), sources_.size(),
                          bytes / size_of(dtype), dtype, op, layout_.size);
  });
}

// Where each member's data lies, from `offset` of the chunk on: `own` is where this rank's
// does, or null if it too lies in its slot.
const void* const* Channel::sources(const uint8_t* own, size_t offset, uint32_t turn) {
  for (int member = 0; member < local_.size(); ++member) {
    const bool elsewhere = own != nullptr && member == local_.rank();
    sources_[static_cast<size_t>(member)] = elsewhere ? own : local_.slot(member, turn) + offset;
  }
  return sources_.data();
}

// Reduces my shard into my own slot, where nothing was copied in, and into my own result.
void Channel::sum_pieces(const Pieces& data, const Chunk& chunk, uint32_t turn, DType dtype,
                         Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  uint8_t* total = local_.slot(local_.rank(), turn) + start;
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t* out, size_t offset, size_t bytes) {
        accumulate_and_finish(total + offset, sources(in, start + offset, turn), sources_.size(),
                              bytes / size_of(dtype), dtype, op, layout_.size);
        std::memcpy(out, total + offset, bytes);
      });
}

// How the shards of a chunk cross the hosts: in one stage if they are all there is, else in three,
// so that those of three chunks are under way at a time.
std::vector<Channel::Stage> Channel::crossing_stages(const Pieces& data, DType dtype, Op op) {
  const DType wide = accumulator_of(dtype);
  const auto by_carriers = [this](const char* name, auto run) -> Stage {
    if (!carrier()) return {name, [](const Chunk&, uint32_t) {}};
    return {name, run};
  };
  const auto set_out = [=, &data](const Chunk& chunk, uint32_t turn) {
    reduce_within(crossing(turn), data, chunk, turn, dtype, op);
    remote_.plan_allreduce(crossing(turn), wide, op);
    crossing(turn).advance();
  };
  const auto arrive = [=, &data](const Chunk& chunk, uint32_t turn) {
    complete(crossing(turn));
    spread(crossing(turn), data, chunk, turn, dtype, op);
  };
  if (data.bytes() <= local_.slot_bytes()) {
    return {by_carriers("reduce", [=](const Chunk& chunk, uint32_t turn) {
      const Span span("allreduce across hosts", chunk.end - chunk.begin);
      set_out(chunk, turn);
      arrive(chunk, turn);
    })};
  }
  const auto go_on = [this](const Chunk&, uint32_t) { advance_crossings(); };
  return {by_carriers("reduce", set_out), by_carriers("cross the hosts", go_on),
          by_carriers("collect", arrive)};
}

// The partial result of this host crosses the others before it is rounded.
void Channel::reduce_within(Crossing& crossing, const Pieces& data, const Chunk& chunk,
                            uint32_t turn, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t start = mine.begin - chunk.begin;
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  crossing.count = (mine.end - mine.begin) / size_of(dtype);
  crossing.data.resize((mine.end - mine.begin) * widened);
  data.for_each(
      mine.begin, mine.end, [&](const uint8_t* in, uint8_t*, size_t offset, size_t bytes) {
        accumulate(crossing.data.data() + offset * widened, sources(in, start + offset, turn),
                   sources_.size(), bytes / size_of(dtype), dtype, op);
      });
}

// To this rank's own result, and to the other members if there are any.
void Channel::spread(const Crossing& crossing, const Pieces& data, const Chunk& chunk,
                     uint32_t turn, DType dtype, Op op) {
  const Chunk mine = shard(chunk, local_.rank());
  const size_t widened = size_of(accumulator_of(dtype)) / size_of(dtype);
  uint8_t* total = local_.slot(local_.rank(), turn) + (mine.begin - chunk.begin);
  data.for_each(mine.begin, mine.end,
                [&](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                  finish(out, crossing.data.data() + offset * widened, bytes / size_of(dtype),
                         dtype, op, layout_.size);
                  if (local_.size() > 1) std::memcpy(total + offset, out, bytes);
                });
}

void Channel::take_part(const char* name, size_t bytes, const Signature& signature,
                        const std::function<void(const Idle&)>& run) {
  Call call(*this, signature, name, bytes);
  goes_elsewhere_ = true;
  run(idle_);
  goes_elsewhere_ = false;
  call.done();
}

// Where MPI takes a shard from the GPU, it is the receiver that multiplies.
std::vector<double> Channel::factors_of(const HostShard& shard) {
  std::vector<double> factors;
  if (!shard.is_scaled || shard.on_gpu == nullptr) return factors;
  uint64_t mine = 0;
  std::memcpy(&mine, &shard.factor, sizeof mine);
  for (uint64_t bits : remote_.all_gather(mine, idle_)) {
    std::memcpy(&factors.emplace_back(), &bits, sizeof bits);
  }
  return factors;
}

void Channel::plan(Crossing& crossing, const HostShard& shard, size_t chunk,
                   const std::vector<double>& factors) {
  const size_t begin = chunk * shard.chunk_bytes, unit = size_of(shard.dtype);
  const size_t count = (std::min(shard.bytes, begin + shard.chunk_bytes) - begin) / unit;
  uint8_t* const data = shard.data + begin;
  if (shard.on_gpu != nullptr) {
    uint8_t* const mine = data + part_of(count).begin * unit;
    return remote_.plan_allreduce_on_gpu(crossing, shard.on_gpu + begin, count, mine, shard.dtype,
                                         shard.op, factors);
  }
  const DType wide = accumulator_of(shard.dtype);
  if (shard.is_scaled) scale(data, data, count, shard.dtype, shard.factor);
  crossing.count = count;
  crossing.data.resize(count * size_of(wide));
  const void* const source = data;
  accumulate(crossing.data.data(), &source, 1, count, shard.dtype, shard.op);
  remote_.plan_allreduce(crossing, wide, shard.op);
  crossing.add("round", [data, count, &crossing, dtype = shard.dtype, op = shard.op] {
    finish(data, crossing.data.data(), count, dtype, op, 1);
  });
}

// Like the stages of an allreduce, but at the pace of what the shard comes and goes by.
void Channel::cross_hosts(const HostShard& shard) {
  const size_t chunks = (shard.bytes + shard.chunk_bytes - 1) / shard.chunk_bytes;
  const std::vector<double> factors = factors_of(shard);
  size_t set_out = 0, arrived = 0;
  const auto move = [&] {
    bool has_moved = false;
    advance_crossings();
    while (set_out < chunks && set_out - arrived < kCrossings && shard.has_come(set_out)) {
      Crossing& next = crossing(static_cast<uint32_t>(set_out));
      plan(next, shard, set_out, factors);
      next.advance();
      ++set_out;
      has_moved = true;
    }
    while (arrived < set_out && !crossing(static_cast<uint32_t>(arrived)).is_under_way()) {
      shard.has_crossed(arrived);
      ++arrived;
      has_moved = true;
    }
    return has_moved;
  };
  while (arrived < chunks) shard.wait(move);
}

void Channel::broadcast(const Pieces& data, int root, const Signature& signature) {
  Call call(*this, signature, "broadcast", data.bytes());
  const int root_node = layout_.node_of[static_cast<size_t>(root)];
  const bool with_root = root_node == layout_.node_rank;
  const int root_member = static_cast<int>(
      std::count(layout_.node_of.begin(), layout_.node_of.begin() + root, root_node));
  const auto home = [&](int owner) { return with_root ? root_member : owner; };
  const auto copy_in = [&](const Chunk& chunk, uint32_t turn) {
    if (layout_.rank != root) return;
    data.copy_in(chunk.begin, chunk.end, local_.slot(local_.rank(), turn));
  };
  const auto cross = [&](const Chunk& chunk, uint32_t turn) {
    if (!several_hosts() || !carrier()) return;
    const Chunk mine = shard(chunk, local_.rank());
    uint8_t* slot = local_.slot(home(local_.rank()), turn);
    remote_.broadcast(slot + (mine.begin - chunk.begin), mine.end - mine.begin, root_node, idle_);
  };
  const auto copy_out = [&](const Chunk& chunk, uint32_t turn) {
    if (layout_.rank == root) return;
    for (int owner = 0; owner < owners(); ++owner) {
      const Chunk theirs = shard(chunk, owner);
      data.copy_out(theirs.begin, theirs.end,
                    local_.slot(home(owner), turn) + (theirs.begin - chunk.begin));
    }
  };
  pipeline(data.bytes(), signature,
           {{"copy in", copy_in}, {"cross the hosts", cross}, {"copy out", copy_out}});
  call.done();
}

namespace {

// A run of bytes as one MPI element, so that counts stay within MPI's int beyond 2^31 bytes.
class Unit {
 public:
  explicit Unit(size_t bytes) {
    if (bytes > INT32_MAX) throw Error("Rows of more than 2^31 bytes are not supported.");
    EASYDDL_MPI(MPI_Type_contiguous, static_cast<int>(bytes), MPI_BYTE, &type_);
    EASYDDL_MPI(MPI_Type_commit, &type_);
  }
  ~Unit() { MPI_Type_free(&type_); }
  Unit(const Unit&) = delete;
  Unit& operator=(const Unit&) = delete;
  MPI_Datatype type() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

// Counts and starts as MPI takes them.
struct Spans {
  explicit Spans(const std::vector<int64_t>& units) {
    int64_t start = 0;
    for (int64_t each : units) {
      if (start + each > INT32_MAX) {
        throw Error("More than 2^31 rows in one collective are not supported.");
      }
      counts.push_back(static_cast<int>(each));
      starts.push_back(static_cast<int>(start));
      start += each;
    }
  }
  std::vector<int> counts, starts;
};

}  // namespace

std::vector<int64_t> Channel::gather_values(int64_t value, const Signature& signature) {
  Call call(*this, signature, "gather values");
  rendezvous(signature);
  std::vector<int64_t> all(static_cast<size_t>(layout_.size));
  MPI_Request request;
  EASYDDL_MPI(MPI_Iallgather, &value, 1, MPI_INT64_T, all.data(), 1, MPI_INT64_T, comm_.get(),
              &request);
  wait(request);
  call.done();
  return all;
}

void Channel::all_gather(const void* in, void* out, const std::vector<int64_t>& counts,
                         size_t unit_bytes, const Signature& signature) {
  Call call(*this, signature, "all-gather");
  rendezvous(signature);
  const Unit unit(unit_bytes);
  const Spans spans(counts);
  MPI_Request request;
  EASYDDL_MPI(MPI_Iallgatherv, in, spans.counts[static_cast<size_t>(layout_.rank)], unit.type(),
              out, spans.counts.data(), spans.starts.data(), unit.type(), comm_.get(), &request);
  wait(request);
  call.done();
}

void Channel::all_to_all(const void* in, void* out, const std::vector<int64_t>& sends,
                         const std::vector<int64_t>& receives, size_t unit_bytes,
                         const Signature& signature) {
  Call call(*this, signature, "all-to-all");
  rendezvous(signature);
  const Unit unit(unit_bytes);
  const Spans from(sends), into(receives);
  MPI_Request request;
  EASYDDL_MPI(MPI_Ialltoallv, in, from.counts.data(), from.starts.data(), unit.type(), out,
              into.counts.data(), into.starts.data(), unit.type(), comm_.get(), &request);
  wait(request);
  call.done();
}

void Channel::reduce_scatter(const void* in, void* out, size_t count, DType dtype, Op op,
                             const Signature& signature) {
  const size_t part = count * size_of(dtype);
  const std::vector<int64_t> each(static_cast<size_t>(layout_.size), 1);
  std::vector<uint8_t> inbox(part * each.size());
  all_to_all(in, inbox.data(), each, each, part, signature);
  std::vector<const void*> parts;
  for (size_t rank = 0; rank < each.size(); ++rank) parts.push_back(inbox.data() + rank * part);
  accumulate_and_finish(out, parts.data(), parts.size(), count, dtype, op, layout_.size);
}

}  // namespace easyddl
