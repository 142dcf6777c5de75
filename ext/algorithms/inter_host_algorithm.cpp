#include "algorithms/inter_host_algorithm.h"

#include <algorithm>
#include <array>
#include <utility>

#include "arrays/arithmetic.h"
#include "common/check.h"

namespace easyddl {
namespace {

using Shard = InterHostOperation::Shard;

constexpr std::array<std::pair<const char*, InterHostAlgorithm>, 4> kAlgorithms{
    {{"whole", InterHostAlgorithm::whole},
     {"direct", InterHostAlgorithm::direct},
     {"halving", InterHostAlgorithm::halving},
     {"ring", InterHostAlgorithm::ring}}};

// The most simultaneous senders of much data. More of them overflow the buffers of a switch, and
// TCP then waits for long (incast: Phanishayee et al., FAST 2008).
constexpr int kMostSenders = 8;

// What a sender may send before the first acknowledgement: ten segments (RFC 6928).
constexpr double kFirstWindow = 14 << 10;

// Names of steps.
constexpr const char* kScatter = "reduce-scatter across hosts";
constexpr const char* kGather = "all-gather across hosts";
constexpr const char* kSum = "sum across hosts";

int largest_power_within(int n) {
  int power = 1;
  while (power * 2 <= n) power *= 2;
  return power;
}

// Returns a number below a power of two with its bits in reverse order.
int reversed_bits(int number, int power) {
  int reversed = 0;
  for (int bit = 1; bit < power; bit *= 2) reversed = 2 * reversed + ((number & bit) != 0 ? 1 : 0);
  return reversed;
}

double rounds_of_halving(int members) {
  double rounds = 0;
  for (int power = largest_power_within(members); power > 1; power /= 2) ++rounds;
  return rounds;
}

double cost(InterHostAlgorithm algorithm, double bytes, int members) {
  const double n = members, others = n - 1, round = kLatencyBytes + kSenderBytes;
  const double uneven = 1 + kUnevenness * (others - 1);  // if a member sends to all others at once
  switch (algorithm) {
    case InterHostAlgorithm::whole:
      return kLatencyBytes + others * (kSenderBytes + uneven * bytes);
    case InterHostAlgorithm::direct:
      return 2 * (kLatencyBytes + others * (kSenderBytes + uneven * bytes / n));
    case InterHostAlgorithm::halving: {
      const double fold = largest_power_within(members) == members ? 0 : 2 * (round + bytes);
      return 2 * (rounds_of_halving(members) * round + others / n * bytes) + fold;
    }
    case InterHostAlgorithm::ring:
      return 2 * others * (round + bytes / n);
  }
  throw Error("Unknown algorithm.");
}

// Halving divides the data by a power of two.
bool leaves_shards(InterHostAlgorithm algorithm, const InterHostOperation& operation) {
  if (algorithm == InterHostAlgorithm::halving) {
    return operation.owners == operation.size &&
           largest_power_within(operation.size) == operation.size;
  }
  return algorithm != InterHostAlgorithm::whole;
}

// Starts a message with a part of the data.
void send(const InterHostOperation& operation, Schedule& schedule, Shard part, int peer) {
  operation.round_to_wire(part);
  schedule.send(operation.comm, operation.wire_at(part.begin), operation.wire_bytes(part.count),
                peer);
}

// Adds what others have sent for a part of the data, in the order of the list.
void add_to(const InterHostOperation& operation, Schedule& schedule, Shard part,
            const std::vector<const void*>& received) {
  uint8_t* mine = operation.at(part.begin);
  std::array<const void*, 2> sources{mine, received.front()};
  if (operation.wire != nullptr) {
    uint8_t* others = schedule.scratch(operation.bytes(part.count));
    accumulate(others, received.data(), received.size(), part.count, operation.wire_dtype,
               operation.op);
    sources[1] = others;
  }
  accumulate(mine, sources.data(), sources.size(), part.count, operation.dtype, operation.op);
}

// A message between this member and another one, with a part of the data.
struct Message {
  int peer;
  Shard part;
};

// Adds messages of the elements as they are. What is received replaces its part of the data.
void add_exchange(const InterHostOperation& operation, Schedule& schedule, Message incoming,
                  Message outgoing) {
  schedule.add(kGather, [operation, &schedule, incoming, outgoing] {
    schedule.receive(operation.comm, operation.at(incoming.part.begin),
                     operation.bytes(incoming.part.count), incoming.peer);
    schedule.send(operation.comm, operation.at(outgoing.part.begin),
                  operation.bytes(outgoing.part.count), outgoing.peer);
  });
}

// Adds messages of the elements as they are in messages. What is received is added to its part.
void add_exchange_and_sum(const InterHostOperation& operation, Schedule& schedule, Message incoming,
                          Message outgoing) {
  const size_t bytes = operation.wire_bytes(incoming.part.count);
  schedule.add(kScatter, [operation, &schedule, bytes, incoming, outgoing] {
    schedule.receive(operation.comm, schedule.inbox(bytes), bytes, incoming.peer);
    send(operation, schedule, outgoing.part, outgoing.peer);
  });
  schedule.add(kSum, [operation, &schedule, bytes, part = incoming.part] {
    add_to(operation, schedule, part, {schedule.inbox(bytes)});
  });
}

// Returns the members' elements of a part of the data in the order of the ranks: this member's own,
// and what is in the inbox.
std::vector<const void*> sources_in_order(const InterHostOperation& operation, Schedule& schedule,
                                          const uint8_t* own, size_t count) {
  const size_t bytes = operation.wire_bytes(count);
  const uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(operation.size));
  std::vector<const void*> sources;
  for (int peer = 0; peer < operation.size; ++peer) {
    sources.push_back(peer == operation.rank ? own : inbox + bytes * static_cast<size_t>(peer));
  }
  return sources;
}

// Replaces a part of the data by the sum of all members' elements, as they are in messages.
void sum_in_order(const InterHostOperation& operation, Schedule& schedule, Shard part) {
  if (part.count == 0) return;  // this member owns no shard
  const std::vector<const void*> sources =
      sources_in_order(operation, schedule, operation.wire_at(part.begin), part.count);
  uint8_t* const sum = operation.at(part.begin);
  if (operation.wire != nullptr) {
    accumulate(sum, sources.data(), sources.size(), part.count, operation.wire_dtype, operation.op);
  } else {  // the sum replaces a source; only this function permits that
    accumulate_and_finish(sum, sources.data(), sources.size(), part.count, operation.dtype,
                          operation.op, 1);
  }
}

// Adds messages that send each shard to its owner's inbox. An inbox holds the shards by rank.
void add_messages_to_owners(const char* name, const InterHostOperation& operation,
                            Schedule& schedule) {
  schedule.add(name, [operation, &schedule] {
    const size_t bytes = operation.wire_bytes(operation.shard(operation.rank).count);
    uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(operation.size));
    for (int peer = 0; peer < operation.size; ++peer) {
      if (peer == operation.rank) continue;
      schedule.receive(operation.comm, inbox + bytes * static_cast<size_t>(peer), bytes, peer);
      send(operation, schedule, operation.shard(peer), peer);
    }
  });
}

void scatter_directly(const InterHostOperation& operation, Schedule& schedule) {
  add_messages_to_owners(kScatter, operation, schedule);
  schedule.add(kSum, [operation, &schedule] {
    const Shard mine = operation.shard(operation.rank);
    if (operation.wire == nullptr) return sum_in_order(operation, schedule, mine);
    std::vector<const void*> received = sources_in_order(operation, schedule, nullptr, mine.count);
    received.erase(received.begin() + operation.rank);
    add_to(operation, schedule, mine, received);
  });
}

// Adds messages that send each owner's sum, at `sum`, to all others.
void add_messages_of_owners(const char* name, const InterHostOperation& operation,
                            const uint8_t* sum, Schedule& schedule) {
  schedule.add(name, [operation, sum, &schedule] {
    const Shard mine = operation.shard(operation.rank);
    for (int peer = 0; peer < operation.size; ++peer) {
      if (peer == operation.rank) continue;
      const Shard theirs = operation.shard(peer);
      schedule.receive(operation.comm, operation.at(theirs.begin), operation.bytes(theirs.count),
                       peer);
      schedule.send(operation.comm, sum, operation.bytes(mine.count), peer);
    }
  });
}

void gather_directly(const InterHostOperation& operation, Schedule& schedule) {
  add_messages_of_owners(kGather, operation, operation.at(operation.shard(operation.rank).begin),
                         schedule);
}

// In round s each member sends its partial sum of shard `rank - s - 1` to the next member, and adds
// its own data of shard `rank - s - 2` to the partial sum that it receives. After n-1 rounds it has
// the complete sum of its own shard.
void scatter_in_ring(const InterHostOperation& operation, Schedule& schedule) {
  const int next = (operation.rank + 1) % operation.size,
            previous = (operation.rank + operation.size - 1) % operation.size;
  const auto shard = [operation](int index) {
    return operation.shard((index + 2 * operation.size) % operation.size);
  };
  for (int round = 0; round < operation.size - 1; ++round) {
    const Shard outgoing = shard(operation.rank - round - 1),
                incoming = shard(operation.rank - round - 2);
    add_exchange_and_sum(operation, schedule, {previous, incoming}, {next, outgoing});
  }
}

void gather_in_ring(const InterHostOperation& operation, Schedule& schedule) {
  const int next = (operation.rank + 1) % operation.size,
            previous = (operation.rank + operation.size - 1) % operation.size;
  const auto shard = [operation](int index) {
    return operation.shard((index + operation.size) % operation.size);
  };
  for (int round = 0; round < operation.size - 1; ++round) {
    const Shard outgoing = shard(operation.rank - round),
                incoming = shard(operation.rank - round - 1);
    add_exchange(operation, schedule, {previous, incoming}, {next, outgoing});
  }
}

// Recursive halving and doubling (Thakur, Rabenseifner and Gropp, 2005). Members beyond the largest
// power of two first send all their data to a partner, and receive the result at the end. On the
// last level the places have the ranks' bits in reverse order: half of the data goes to the next
// rank, which is mostly near, and only a part to the far ones.
class Halving {
 public:
  Halving(const InterHostOperation& operation, Schedule& schedule)
      : operation_(operation),
        schedule_(schedule),
        power_(largest_power_within(operation.size)),
        place_(other_number(operation.rank)) {}

  void add_reduce_scatter() const {
    const int partner = operation_.rank ^ power_;
    if (operation_.rank >= power_) return receive_and_add(partner, {0, 0}, {0, operation_.count});
    if (partner < operation_.size) receive_and_add(partner, {0, operation_.count}, {0, 0});
    int first = 0;
    for (int half = power_ / 2; half > 0; half /= 2) {
      const bool upper = (place_ & half) != 0;
      const int kept = upper ? first + half : first, given = upper ? first : first + half;
      receive_and_add(other_number(place_ ^ half), shards(kept, half), shards(given, half));
      first = kept;
    }
  }

  void add_all_gather() const {
    const int partner = operation_.rank ^ power_;
    if (operation_.rank >= power_)
      return receive_and_replace(partner, {0, operation_.count}, {0, 0});
    for (int half = 1; half < power_; half *= 2) {
      const int mine = place_ / half * half;
      receive_and_replace(other_number(place_ ^ half), shards(mine ^ half, half),
                          shards(mine, half));
    }
    if (partner < operation_.size) receive_and_replace(partner, {0, 0}, {0, operation_.count});
  }

  // Returns the part of the data of which this member has the sum after the reduce-scatter.
  Shard own_part() const { return operation_.rank < power_ ? shards(place_, 1) : Shard{0, 0}; }

 private:
  // Returns the place of a rank, or the rank at a place.
  int other_number(int number) const {
    return operation_.is_last ? reversed_bits(number, power_) : number;
  }

  // Returns the range of `number` neighbouring shards, when the data is divided by the largest
  // power of two.
  Shard shards(int first, int number) const {
    InterHostOperation even = operation_;
    even.owners = power_;
    const Shard begin = even.shard(first), last = even.shard(first + number - 1);
    return {begin.begin, last.begin + last.count - begin.begin};
  }

  void receive_and_replace(int peer, Shard incoming, Shard outgoing) const {
    add_exchange(operation_, schedule_, {peer, incoming}, {peer, outgoing});
  }

  void receive_and_add(int peer, Shard incoming, Shard outgoing) const {
    add_exchange_and_sum(operation_, schedule_, {peer, incoming}, {peer, outgoing});
  }

  InterHostOperation operation_;
  Schedule& schedule_;
  int power_, place_;
};

void gather(InterHostAlgorithm algorithm, const InterHostOperation& operation, Schedule& schedule) {
  if (algorithm == InterHostAlgorithm::ring) return gather_in_ring(operation, schedule);
  if (algorithm == InterHostAlgorithm::halving)
    return Halving(operation, schedule).add_all_gather();
  gather_directly(operation, schedule);
}

// Returns the part of the data of which this member has the sum after the reduce-scatter.
Shard own_part(InterHostAlgorithm algorithm, const InterHostOperation& operation,
               Schedule& schedule) {
  if (algorithm == InterHostAlgorithm::halving) return Halving(operation, schedule).own_part();
  return operation.shard(operation.rank);
}

}  // namespace

std::optional<InterHostAlgorithm> inter_host_algorithm_named(const std::string& name) {
  for (const auto& [known, algorithm] : kAlgorithms) {
    if (name == known) return algorithm;
  }
  return std::nullopt;
}

const char* name_of(InterHostAlgorithm algorithm) {
  for (const auto& [name, known] : kAlgorithms) {
    if (algorithm == known) return name;
  }
  throw Error("Unknown algorithm.");
}

InterHostOperation::Shard InterHostOperation::shard(int owner) const {
  const size_t n = static_cast<size_t>(owners), i = static_cast<size_t>(std::min(owner, owners));
  const size_t begin = count / n * i + std::min(i, count % n);
  return {begin, owner < owners ? count / n + (i < count % n ? 1 : 0) : 0};
}

InterHostOperation InterHostOperation::part(Shard range) const {
  InterHostOperation result = *this;
  result.data = at(range.begin);
  result.count = range.count;
  if (wire != nullptr) result.wire = wire_at(range.begin);
  return result;
}

void InterHostOperation::round_to_wire(Shard range) const {
  if (wire == nullptr) return;
  finish(wire_at(range.begin), at(range.begin), range.count, wire_dtype, op, 1);
}

void InterHostOperation::widen_from_wire(Shard range) const {
  if (wire == nullptr) return;
  const void* const source = wire_at(range.begin);
  accumulate(at(range.begin), &source, 1, range.count, wire_dtype, op);
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

InterHostAlgorithm algorithm_with_shards(InterHostAlgorithm algorithm,
                                         const InterHostOperation& operation) {
  if (leaves_shards(algorithm, operation)) return algorithm;
  const double bytes = static_cast<double>(operation.wire_bytes(operation.count));
  InterHostAlgorithm best =
      direct_is_safe(operation) ? InterHostAlgorithm::direct : InterHostAlgorithm::ring;
  for (InterHostAlgorithm other : {InterHostAlgorithm::halving, InterHostAlgorithm::ring}) {
    if (!leaves_shards(other, operation)) continue;
    if (cost(other, bytes, operation.size) < cost(best, bytes, operation.size)) best = other;
  }
  return best;
}

bool direct_is_safe(const InterHostOperation& operation) {
  const size_t senders = static_cast<size_t>(operation.size - 1);
  const size_t bytes = operation.wire_bytes(operation.shard(0).count) * senders;
  return operation.size <= kMostSenders ||
         static_cast<double>(bytes) <= kMostSenders * kFirstWindow;
}

void add_reduce_scatter(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                        Schedule& schedule) {
  if (algorithm == InterHostAlgorithm::ring) return scatter_in_ring(operation, schedule);
  if (algorithm == InterHostAlgorithm::halving)
    return Halving(operation, schedule).add_reduce_scatter();
  scatter_directly(operation, schedule);
}

void add_all_gather(InterHostAlgorithm algorithm, const InterHostOperation& operation,
                    Schedule& schedule) {
  if (operation.wire == nullptr) return gather(algorithm, operation, schedule);
  schedule.add("round", [operation, mine = own_part(algorithm, operation, schedule)] {
    operation.round_to_wire(mine);
  });
  InterHostOperation rounded = operation;
  rounded.data = operation.wire;
  rounded.dtype = operation.wire_dtype;
  rounded.wire = nullptr;
  gather(algorithm, rounded, schedule);
  schedule.add("widen", [operation] { operation.widen_from_wire({0, operation.count}); });
}

void add_reduce_scatter_from_gpu(const GpuShardOperation& shard, Schedule& schedule) {
  add_messages_to_owners("reduce-scatter from GPUs", shard.operation, schedule);
  schedule.add(kSum, [shard, &schedule] {
    const InterHostOperation& operation = shard.operation;
    const size_t count = operation.shard(operation.rank).count, bytes = operation.bytes(count);
    if (count == 0) return;  // this member owns no shard
    uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(operation.size));
    std::vector<const void*> sources;
    for (int peer = 0; peer < operation.size; ++peer) {
      const size_t i = static_cast<size_t>(peer);
      uint8_t* source = peer == operation.rank ? shard.mine : inbox + bytes * i;
      if (!shard.factors.empty()) scale(source, source, count, operation.dtype, shard.factors[i]);
      sources.push_back(source);
    }
    accumulate(schedule.data.data(), sources.data(), sources.size(), count, operation.dtype,
               operation.op);
  });
}

void add_all_gather_to_gpu(const GpuShardOperation& shard, Schedule& schedule) {
  schedule.add("round", [shard, &schedule] {
    const InterHostOperation& operation = shard.operation;
    finish(shard.mine, schedule.data.data(), operation.shard(operation.rank).count, operation.dtype,
           operation.op, 1);
  });
  add_messages_of_owners("all-gather to GPUs", shard.operation, shard.mine, schedule);
}

void add_whole(const InterHostOperation& operation, Schedule& schedule) {
  const Shard all{0, operation.count};
  schedule.add("exchange across hosts", [operation, all, &schedule] {
    const size_t bytes = operation.wire_bytes(all.count);
    uint8_t* inbox = schedule.inbox(bytes * static_cast<size_t>(operation.size));
    operation.round_to_wire(all);
    for (int peer = 0; peer < operation.size; ++peer) {
      if (peer == operation.rank) continue;
      schedule.receive(operation.comm, inbox + bytes * static_cast<size_t>(peer), bytes, peer);
      schedule.send(operation.comm, operation.wire_at(0), bytes, peer);
    }
  });
  schedule.add(kSum, [operation, all, &schedule] { sum_in_order(operation, schedule, all); });
}

}  // namespace easyddl
