#include "reducer/nonblocking_sum.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "arrays/arithmetic.h"

namespace easyddl {
namespace {

// The size of a slot. Longer data takes several chunks.
constexpr size_t kChunk = 256 << 10;

// A slot is written again two phases later. A rank reads the slots of a phase before it ends the
// next phase, and writes again only when all ranks have ended that next phase.
constexpr uint32_t kSlots = 2;

// For at most this much data every member sums the data of all members, in one phase instead of
// two.
constexpr size_t kAtOnce = 8 << 10;

}  // namespace

NonblockingSum::NonblockingSum(const World& world, int tag, size_t most_bytes,
                               std::function<void()> wake_host)
    : topology_(world.topology()),
      shared_memory_(topology_, std::min(kChunk, most_bytes), kSlots),
      remote_(topology_, world.algorithm_rules()),
      schedule_(tag),
      wake_host_(std::move(wake_host)),
      sources_(static_cast<size_t>(topology_.local_size)) {}

void NonblockingSum::begin(std::unique_ptr<SegmentList> data) {
  data_ = std::move(data);
  at_ = 0;
  begin_chunk();
}

bool NonblockingSum::advance() {
  switch (state_) {
    case State::idle:
      return false;
    case State::gathering:
      if (!shared_memory_.have_all_ended(phase_)) return false;
      end_gathering();
      return true;
    case State::between_hosts:
      return end_between_hosts();
    case State::spreading:
      if (!shared_memory_.have_all_ended(phase_ + 1)) return false;
      copy_shards();
      end_chunk();
      return true;
  }
  return false;
}

void NonblockingSum::begin_chunk() {
  phase_ = shared_memory_.phase();
  const ByteRange mine = chunk();
  data_->copy_in(mine.begin, mine.end, shared_memory_.slot(shared_memory_.rank(), phase_));
  state_ = State::gathering;
  end_phase();
}

// The rank that completes a phase wakes the other ranks of its host.
void NonblockingSum::end_phase() {
  const uint32_t phase = shared_memory_.phase();
  shared_memory_.end_phase();
  if (shared_memory_.size() > 1 && shared_memory_.have_all_ended(phase)) wake_host_();
}

ByteRange NonblockingSum::chunk() const {
  return {at_, std::min(data_->bytes(), at_ + shared_memory_.slot_bytes())};
}

// Returns the shard's range within the chunk.
ByteRange NonblockingSum::shard(int owner) const {
  return shard_of({0, chunk().size()}, owner, topology_.num_owners());
}

bool NonblockingSum::is_at_once() const {
  return !topology_.has_several_hosts() && data_->bytes() <= kAtOnce;
}

// Returns the addresses of the members' data, from `offset` of the chunk on.
const void* const* NonblockingSum::sources(size_t offset) {
  for (int member = 0; member < shared_memory_.size(); ++member) {
    sources_[static_cast<size_t>(member)] = shared_memory_.slot(member, phase_) + offset;
  }
  return sources_.data();
}

// Continues once all members have written the chunk.
void NonblockingSum::end_gathering() {
  if (is_at_once()) {
    reduce_at_once();
    end_chunk();
  } else if (shared_memory_.rank() >= topology_.num_owners()) {
    state_ = State::spreading;
    end_phase();
  } else if (topology_.has_several_hosts()) {
    reduce_across_hosts();
  } else {
    reduce_shard();
  }
}

void NonblockingSum::reduce_at_once() {
  data_->for_each(0, data_->bytes(),
                  [this](const uint8_t*, uint8_t* out, size_t offset, size_t bytes) {
                    accumulate_and_finish(out, sources(offset), sources_.size(),
                                          bytes / sizeof(float), DType::float32, Op::sum, 1);
                  });
}

void NonblockingSum::reduce_shard() {
  const ByteRange mine = shard(shared_memory_.rank());
  if (mine.size() > 0) {
    accumulate_and_finish(shared_memory_.slot(shared_memory_.rank(), phase_ + 1) + mine.begin,
                          sources(mine.begin), sources_.size(), mine.size() / sizeof(float),
                          DType::float32, Op::sum, 1);
  }
  state_ = State::spreading;
  end_phase();
}

void NonblockingSum::reduce_across_hosts() {
  const ByteRange mine = shard(shared_memory_.rank());
  schedule_.count = mine.size() / sizeof(float);
  schedule_.data.resize(mine.size());
  if (schedule_.count > 0) {
    accumulate(schedule_.data.data(), sources(mine.begin), sources_.size(), schedule_.count,
               DType::float32, Op::sum);
  }
  remote_.plan_allreduce(schedule_, DType::float32, Op::sum, data_->bytes());
  state_ = State::between_hosts;
}

bool NonblockingSum::end_between_hosts() {
  if (!schedule_.advance()) return false;
  const ByteRange mine = shard(shared_memory_.rank());
  if (mine.size() > 0) {
    std::memcpy(shared_memory_.slot(shared_memory_.rank(), phase_ + 1) + mine.begin,
                schedule_.data.data(), mine.size());
  }
  state_ = State::spreading;
  end_phase();
  return true;
}

void NonblockingSum::copy_shards() {
  for (int owner = 0; owner < topology_.num_owners(); ++owner) {
    const ByteRange theirs = shard(owner);
    data_->copy_out(at_ + theirs.begin, at_ + theirs.end,
                    shared_memory_.slot(owner, phase_ + 1) + theirs.begin);
  }
}

void NonblockingSum::end_chunk() {
  at_ = chunk().end;
  if (at_ < data_->bytes()) return begin_chunk();
  state_ = State::idle;
}

}  // namespace easyddl
