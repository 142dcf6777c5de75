#include "collectives/pipeline.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "collectives/array_exchange.h"
#include "collectives/value_exchange.h"
#include "profiling/trace.h"

namespace easyddl {
namespace {

constexpr uint32_t kAgreed = 1;

// The leaders compare the fingerprints of their host, then those of all hosts, and publish the
// verdict to the members of their host.
void compare_hosts(CollectiveContext& context, uint32_t first_phase) {
  if (!context.is_leader()) return;
  SharedMemoryLevel& shared_memory = context.shared_memory();
  const uint64_t mine = members_agree(context, first_phase) ? context.fingerprint().hash : 0;
  const std::vector<uint64_t> all = values_of_hosts(context, mine);
  const bool agreed =
      std::all_of(all.begin(), all.end(), [&](uint64_t hash) { return hash != 0 && hash == mine; });
  shared_memory.note(shared_memory.rank(), shared_memory.phase()).verdict = agreed ? kAgreed : 0;
}

// Compares fingerprints in the k-th phase of a pipeline. On one host each rank reads the
// fingerprints of all others in phase 1. With several hosts
//   phase 0: each rank writes its fingerprint to the shared memory;
//   phase 1: the leaders compare and write the verdict;
//   phase 2: all ranks read the verdict.
void compare_in_phase(CollectiveContext& context, size_t k, uint32_t first_phase) {
  const bool several_hosts = context.topology().has_several_hosts();
  if (k == 1 && several_hosts) compare_hosts(context, first_phase);
  if (k == 1 && !several_hosts) require_agreement(context, first_phase);
  if (k == 2 && several_hosts) {
    SharedMemoryLevel& shared_memory = context.shared_memory();
    if (shared_memory.note(0, shared_memory.phase() - 1).verdict != kAgreed)
      throw_disagreement(context);
  }
}

// Returns whether this rank may process data in the k-th phase. A leader that has found a
// disagreement in this phase must not send data, because the other leaders may expect another
// length.
bool may_proceed(CollectiveContext& context, size_t k) {
  SharedMemoryLevel& shared_memory = context.shared_memory();
  return !context.topology().has_several_hosts() || k != 1 || !context.is_leader() ||
         shared_memory.note(shared_memory.rank(), shared_memory.phase()).verdict == kAgreed;
}

}  // namespace

void pipeline(CollectiveContext& context, size_t bytes, const std::vector<Stage>& stages) {
  SharedMemoryLevel& shared_memory = context.shared_memory();
  const size_t chunk_bytes = shared_memory.slot_bytes();
  const size_t chunks = (bytes + chunk_bytes - 1) / chunk_bytes;
  const uint32_t first_phase = shared_memory.phase();
  const size_t least = context.topology().has_several_hosts() ? 3 : 2;
  const size_t phases = std::max(chunks + stages.size() - 1, least);
  for (size_t k = 0; k < phases; ++k) {
    const uint32_t phase = shared_memory.phase();
    const auto take = [&](size_t stage) {
      if (k < stage || k - stage >= chunks) return;
      const size_t index = k - stage;
      const ByteRange chunk{index * chunk_bytes, std::min(bytes, (index + 1) * chunk_bytes)};
      const Span span(stages[stage].name, chunk.size());
      stages[stage].run(chunk, phase - static_cast<uint32_t>(stage));
    };
    if (k == 0) {
      shared_memory.note(shared_memory.rank(), phase) = {context.fingerprint().hash, 0,
                                                         context.is_protected() ? 1u : 0u};
    }
    take(0);
    context.wait_for_phase(phase - 1);
    compare_in_phase(context, k, first_phase);
    const bool proceeds = may_proceed(context, k);
    for (size_t stage = 1; proceeds && stage < stages.size(); ++stage) take(stage);
    shared_memory.end_phase();
  }
}

void rendezvous(CollectiveContext& context) {
  const Stage nothing{"nothing", [](const ByteRange&, uint32_t) {}};
  pipeline(context, 0, {nothing, nothing, nothing});
}

bool members_agree(CollectiveContext& context, uint32_t phase) {
  SharedMemoryLevel& shared_memory = context.shared_memory();
  for (int member = 0; member < shared_memory.size(); ++member) {
    if (shared_memory.note(member, phase).fingerprint != context.fingerprint().hash) return false;
  }
  return true;
}

void require_agreement(CollectiveContext& context, uint32_t phase) {
  if (!members_agree(context, phase)) throw_disagreement(context);
}

void throw_disagreement(CollectiveContext& context) {
  const std::string& mine = context.fingerprint().text;
  const std::vector<int64_t> lengths = values_of_ranks(context, static_cast<int64_t>(mine.size()));
  const int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  std::string joined(static_cast<size_t>(total), '\0');
  gather_arrays(context, mine.data(), joined.data(), lengths);
  std::vector<std::string> texts;
  size_t start = 0;
  for (int64_t length : lengths) {
    texts.push_back(joined.substr(start, static_cast<size_t>(length)));
    start += static_cast<size_t>(length);
  }
  throw CollectiveError(describe_disagreement(texts));
}

}  // namespace easyddl
