// How the data of a collective goes in chunks through stages, and how the ranks of a collective
// compare their fingerprints meanwhile.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "algorithms/bruck.h"
#include "collectives/communicator.h"
#include "common/check.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

// Shards begin at multiples of this, so that no two ranks write to one cache line.
constexpr size_t kLine = 128;

constexpr uint32_t kAgreed = 1;

}  // namespace

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

// In phase k chunk k goes through stage 0, chunk k-1 through stage 1, and so on: at most one wait
// for the other ranks in each phase. Meanwhile the ranks compare their fingerprints. On one host
// each rank reads those of all others in the second phase. With several hosts
//   phase 0: each rank writes its fingerprint to the shared memory;
//   phase 1: the leaders compare those of their host, then those of all hosts, and write the
//   verdict; phase 2: all ranks read the verdict.
void Communicator::pipeline(size_t bytes, const Fingerprint& fingerprint,
                            const std::vector<Stage>& stages) {
  const size_t chunks = (bytes + local_.slot_bytes() - 1) / local_.slot_bytes();
  const uint32_t first = local_.phase();
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

// Advances all schedules across the hosts. True if none is in progress.
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

}  // namespace easyddl
