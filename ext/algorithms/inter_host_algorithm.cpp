#include "algorithms/inter_host_algorithm.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "arrays/arithmetic.h"
#include "common/check.h"

namespace easyddl {
namespace {

// What a message costs in terms of the bytes that a wire carries meanwhile: 25 us at 10 Gbit/s,
// 250 at 1. Latency times speed differs much less between networks than either.
constexpr double kLatencyBytes = 32 << 10;
constexpr double kMessageBytes = 2 << 10;

// More senders than these at once overflow the buffers of a switch, and TCP then waits for long
// (incast: Phanishayee et al., FAST 2008).
constexpr int kMostSenders = 8;

// Names of steps.
constexpr const char* kScatter = "reduce-scatter across hosts";
constexpr const char* kGather = "all-gather across hosts";
constexpr const char* kSum = "sum across hosts";

int largest_power_within(int n) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

double rounds_of_halving(int members) {
  double rounds = 0;
  for (int power = largest_power_within(members); power > 1; power /= 2) ++rounds;
  return rounds;
}

double cost(InterHostAlgorithm algorithm, double bytes, int members) {
  const double n = members, others = n - 1, round = kLatencyBytes + kMessageBytes;
  switch (algorithm) {
    case InterHostAlgorithm::whole:
      return kLatencyBytes + others * (kMessageBytes + bytes);
    case InterHostAlgorithm::direct:
      return 2 * (kLatencyBytes + others * (kMessageBytes + bytes / n));
    case InterHostAlgorithm::halving: {
      const double fold = largest_power_within(members) == members ? 0 : 2 * (round + bytes);
      return 2 * (rounds_of_halving(members) * round + others / n * bytes) + fold;
    }
    case InterHostAlgorithm::ring:
      return 2 * others * (round + bytes / n);
  }
  throw Error("Unknown algorithm.");
}

// data[shard] += what came.
void add_to(const InterHostOperation& operation, InterHostOperation::Shard shard,
            const uint8_t* came) {
  uint8_t* mine = operation.at(shard.begin);
  const std::array<const void*, 2> sources{mine, came};
  accumulate(mine, sources.data(), sources.size(), shard.count, operation.dtype, operation.op);
}

// sum = the sum of all members' `count` elements, in the order of the ranks. The others' lie in
// the inbox, by rank; mine are to become the sum.
void sum_in_order(const InterHostOperation& operation, Schedule& schedule, uint8_t* mine,
                  size_t count) {
  if (count == 0) return;  // no owner
  const size_t bytes = operation.bytes(count);
  const uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(operation.size));
  std::vector<const void*> sources;
  for (int peer = 0; peer < operation.size; ++peer) {
    sources.push_back(peer == operation.rank ? mine : inbox + bytes * static_cast<size_t>(peer));
  }
  uint8_t* sum = schedule.scratch(bytes);
  accumulate(sum, sources.data(), sources.size(), count, operation.dtype, operation.op);
  std::memcpy(mine, sum, bytes);
}

// To their owners' inboxes, by rank.
void add_messages_to_owners(const char* name, const InterHostOperation& j, Schedule& schedule) {
  schedule.add(name, [j, &schedule] {
    const InterHostOperation::Shard mine = j.shard(j.rank);
    uint8_t* inbox = schedule.inbox(j.bytes(mine.count) * static_cast<size_t>(j.size));
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      const InterHostOperation::Shard theirs = j.shard(peer);
      schedule.receive(j.comm, inbox + j.bytes(mine.count) * static_cast<size_t>(peer),
                       j.bytes(mine.count), peer);
      schedule.send(j.comm, j.at(theirs.begin), j.bytes(theirs.count), peer);
    }
  });
}

void scatter_directly(const InterHostOperation& j, Schedule& schedule) {
  add_messages_to_owners(kScatter, j, schedule);
  schedule.add(kSum, [j, &schedule] {
    const InterHostOperation::Shard mine = j.shard(j.rank);
    sum_in_order(j, schedule, j.at(mine.begin), mine.count);
  });
}

// Each owner's sum, which lies at `sum`, to all others.
void add_messages_of_owners(const char* name, const InterHostOperation& j, const uint8_t* sum,
                            Schedule& schedule) {
  schedule.add(name, [j, sum, &schedule] {
    const InterHostOperation::Shard mine = j.shard(j.rank);
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      const InterHostOperation::Shard theirs = j.shard(peer);
      schedule.receive(j.comm, j.at(theirs.begin), j.bytes(theirs.count), peer);
      schedule.send(j.comm, sum, j.bytes(mine.count), peer);
    }
  });
}

void gather_directly(const InterHostOperation& j, Schedule& schedule) {
  add_messages_of_owners(kGather, j, j.at(j.shard(j.rank).begin), schedule);
}

// In round s each member hands on the sum of shard `rank - s - 1` so far, and adds what it has
// of shard `rank - s - 2` to the sum that comes: after n-1 rounds it has the whole of its own.
void scatter_round_a_ring(const InterHostOperation& j, Schedule& schedule) {
  const int next = (j.rank + 1) % j.size, previous = (j.rank + j.size - 1) % j.size;
  const auto shard = [j](int index) { return j.shard((index + 2 * j.size) % j.size); };
  for (int round = 0; round < j.size - 1; ++round) {
    const InterHostOperation::Shard leaves = shard(j.rank - round - 1),
                                    comes = shard(j.rank - round - 2);
    schedule.add(kScatter, [j, leaves, comes, next, previous, &schedule] {
      schedule.receive(j.comm, schedule.inbox(j.bytes(comes.count)), j.bytes(comes.count),
                       previous);
      schedule.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), next);
    });
    schedule.add(kSum,
                 [j, comes, &schedule] { add_to(j, comes, schedule.inbox(j.bytes(comes.count))); });
  }
}

void gather_round_a_ring(const InterHostOperation& j, Schedule& schedule) {
  const int next = (j.rank + 1) % j.size, previous = (j.rank + j.size - 1) % j.size;
  const auto shard = [j](int index) { return j.shard((index + j.size) % j.size); };
  for (int round = 0; round < j.size - 1; ++round) {
    const InterHostOperation::Shard leaves = shard(j.rank - round),
                                    comes = shard(j.rank - round - 1);
    schedule.add(kGather, [j, leaves, comes, next, previous, &schedule] {
      schedule.receive(j.comm, j.at(comes.begin), j.bytes(comes.count), previous);
      schedule.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), next);
    });
  }
}

// Thakur, Rabenseifner and Gropp, 2005. Members beyond the largest power of two first hand all
// they have to a partner, and are handed the result.
class Halving {
 public:
  Halving(const InterHostOperation& operation, Schedule& schedule)
      : j_(operation), schedule_(schedule), power_(largest_power_within(operation.size)) {}

  void add_reduce_scatter() const {
    const int partner = j_.rank ^ power_;
    if (j_.rank >= power_) return send_and_receive(kScatter, partner, {0, 0}, {0, j_.count});
    if (partner < j_.size) receive_and_add(partner, {0, j_.count}, {0, 0});
    int first = 0;
    for (int half = power_ / 2; half > 0; half /= 2) {
      const bool upper = (j_.rank & half) != 0;
      const int kept = upper ? first + half : first, given = upper ? first : first + half;
      receive_and_add(j_.rank ^ half, shards(kept, half), shards(given, half));
      first = kept;
    }
  }

  void add_all_gather() const {
    const int partner = j_.rank ^ power_;
    if (j_.rank >= power_) return send_and_receive(kGather, partner, {0, j_.count}, {0, 0});
    for (int half = 1; half < power_; half *= 2) {
      const int mine = j_.rank / half * half;
      send_and_receive(kGather, j_.rank ^ half, shards(mine ^ half, half), shards(mine, half));
    }
    if (partner < j_.size) send_and_receive(kGather, partner, {0, 0}, {0, j_.count});
  }

 private:
  // So many neighbouring shards of the largest power of two.
  InterHostOperation::Shard shards(int first, int number) const {
    InterHostOperation even = j_;
    even.owners = power_;
    const InterHostOperation::Shard begin = even.shard(first),
                                    last = even.shard(first + number - 1);
    return {begin.begin, last.begin + last.count - begin.begin};
  }

  void send_and_receive(const char* name, int peer, InterHostOperation::Shard comes,
                        InterHostOperation::Shard leaves) const {
    schedule_.add(name, [j = j_, &schedule = schedule_, peer, comes, leaves] {
      schedule.receive(j.comm, j.at(comes.begin), j.bytes(comes.count), peer);
      schedule.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), peer);
    });
  }

  void receive_and_add(int peer, InterHostOperation::Shard comes,
                       InterHostOperation::Shard leaves) const {
    schedule_.add(kScatter, [j = j_, &schedule = schedule_, peer, comes, leaves] {
      schedule.receive(j.comm, schedule.inbox(j.bytes(comes.count)), j.bytes(comes.count), peer);
      schedule.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), peer);
    });
    schedule_.add(kSum, [j = j_, &schedule = schedule_, comes] {
      add_to(j, comes, schedule.inbox(j.bytes(comes.count)));
    });
  }

  InterHostOperation j_;
  Schedule& schedule_;
  int power_;
};

}  // namespace

InterHostAlgorithm parse_inter_host_algorithm(const std::string& name) {
  constexpr std::array<std::pair<const char*, InterHostAlgorithm>, 4> kAlgorithms{
      {{"whole", InterHostAlgorithm::whole},
       {"direct", InterHostAlgorithm::direct},
       {"halving", InterHostAlgorithm::halving},
       {"ring", InterHostAlgorithm::ring}}};
  for (const auto& [known, algorithm] : kAlgorithms) {
    if (name == known) return algorithm;
  }
  throw Error("EASYDDL_ROUTE must be one of whole, direct, halving and ring. Received: '" + name +
              "'");
}

InterHostOperation::Shard InterHostOperation::shard(int owner) const {
  const size_t n = static_cast<size_t>(owners), i = static_cast<size_t>(std::min(owner, owners));
  const size_t begin = count / n * i + std::min(i, count % n);
  return {begin, owner < owners ? count / n + (i < count % n ? 1 : 0) : 0};
}

InterHostAlgorithm cheapest_inter_host_algorithm(size_t bytes, int members) {
  InterHostAlgorithm best = InterHostAlgorithm::whole;
  for (InterHostAlgorithm algorithm :
       {InterHostAlgorithm::direct, InterHostAlgorithm::halving, InterHostAlgorithm::ring}) {
    if (algorithm == InterHostAlgorithm::direct && members > kMostSenders) continue;
    const double size = static_cast<double>(bytes);
    if (cost(algorithm, size, members) < cost(best, size, members)) best = algorithm;
  }
  return best;
}

bool halving_is_even(const InterHostOperation& operation) {
  return operation.owners == operation.size &&
         largest_power_within(operation.size) == operation.size;
}

void add_reduce_scatter(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                        Schedule& schedule) {
  if (algorithm == InterHostAlgorithm::ring) return scatter_round_a_ring(operation, schedule);
  if (algorithm == InterHostAlgorithm::halving)
    return Halving(operation, schedule).add_reduce_scatter();
  scatter_directly(operation, schedule);
}

void add_all_gather(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                    Schedule& schedule) {
  if (algorithm == InterHostAlgorithm::ring) return gather_round_a_ring(operation, schedule);
  if (algorithm == InterHostAlgorithm::halving)
    return Halving(operation, schedule).add_all_gather();
  gather_directly(operation, schedule);
}

void add_reduce_scatter_from_gpu(const GpuShardOperation& there, Schedule& schedule) {
  add_messages_to_owners("reduce-scatter from GPUs", there.operation, schedule);
  schedule.add(kSum, [there, &schedule] {
    const InterHostOperation& j = there.operation;
    const size_t count = j.shard(j.rank).count, bytes = j.bytes(count);
    if (count == 0) return;  // no owner
    uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(j.size));
    std::vector<const void*> sources;
    for (int peer = 0; peer < j.size; ++peer) {
      const size_t i = static_cast<size_t>(peer);
      uint8_t* source = peer == j.rank ? there.mine : inbox + bytes * i;
      if (!there.factors.empty()) scale(source, source, count, j.dtype, there.factors[i]);
      sources.push_back(source);
    }
    accumulate(schedule.data.data(), sources.data(), sources.size(), count, j.dtype, j.op);
  });
}

void add_all_gather_to_gpu(const GpuShardOperation& there, Schedule& schedule) {
  schedule.add("round", [there, &schedule] {
    const InterHostOperation& j = there.operation;
    finish(there.mine, schedule.data.data(), j.shard(j.rank).count, j.dtype, j.op, 1);
  });
  add_messages_of_owners("all-gather to GPUs", there.operation, there.mine, schedule);
}

void add_whole(const InterHostOperation& operation, Schedule& schedule) {
  schedule.add("exchange across hosts", [j = operation, &schedule] {
    const size_t bytes = j.bytes(j.count);
    uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(j.size));
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      schedule.receive(j.comm, inbox + bytes * static_cast<size_t>(peer), bytes, peer);
      schedule.send(j.comm, j.data, bytes, peer);
    }
  });
  schedule.add(kSum, [j = operation, &schedule] { sum_in_order(j, schedule, j.data, j.count); });
}

}  // namespace easyddl
