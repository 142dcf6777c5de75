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

double cost(Route route, double bytes, int members) {
  const double n = members, others = n - 1, round = kLatencyBytes + kMessageBytes;
  switch (route) {
    case Route::whole:
      return kLatencyBytes + others * (kMessageBytes + bytes);
    case Route::direct:
      return 2 * (kLatencyBytes + others * (kMessageBytes + bytes / n));
    case Route::halving: {
      const double fold = largest_power_within(members) == members ? 0 : 2 * (round + bytes);
      return 2 * (rounds_of_halving(members) * round + others / n * bytes) + fold;
    }
    case Route::ring:
      return 2 * others * (round + bytes / n);
  }
  throw Error("Unknown route.");
}

// data[shard] += what came.
void add_to(const Journey& journey, Journey::Shard shard, const uint8_t* came) {
  uint8_t* mine = journey.at(shard.begin);
  const std::array<const void*, 2> sources{mine, came};
  accumulate(mine, sources.data(), sources.size(), shard.count, journey.dtype, journey.op);
}

// sum = the sum of all members' `count` elements, in the order of the ranks. The others' lie in
// the inbox, by rank; mine are to become the sum.
void sum_in_order(const Journey& journey, Crossing& crossing, uint8_t* mine, size_t count) {
  if (count == 0) return;  // no owner
  const size_t bytes = journey.bytes(count);
  const uint8_t* inbox = crossing.inbox(bytes * static_cast<size_t>(journey.size));
  std::vector<const void*> sources;
  for (int peer = 0; peer < journey.size; ++peer) {
    sources.push_back(peer == journey.rank ? mine : inbox + bytes * static_cast<size_t>(peer));
  }
  uint8_t* sum = crossing.scratch(bytes);
  accumulate(sum, sources.data(), sources.size(), count, journey.dtype, journey.op);
  std::memcpy(mine, sum, bytes);
}

// To their owners' inboxes, by rank.
void add_messages_to_owners(const char* name, const Journey& j, Crossing& crossing) {
  crossing.add(name, [j, &crossing] {
    const Journey::Shard mine = j.shard(j.rank);
    uint8_t* inbox = crossing.inbox(j.bytes(mine.count) * static_cast<size_t>(j.size));
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      const Journey::Shard theirs = j.shard(peer);
      crossing.receive(j.comm, inbox + j.bytes(mine.count) * static_cast<size_t>(peer),
                       j.bytes(mine.count), peer);
      crossing.send(j.comm, j.at(theirs.begin), j.bytes(theirs.count), peer);
    }
  });
}

void scatter_directly(const Journey& j, Crossing& crossing) {
  add_messages_to_owners(kScatter, j, crossing);
  crossing.add(kSum, [j, &crossing] {
    const Journey::Shard mine = j.shard(j.rank);
    sum_in_order(j, crossing, j.at(mine.begin), mine.count);
  });
}

// Each owner's sum, which lies at `sum`, to all others.
void add_messages_of_owners(const char* name, const Journey& j, const uint8_t* sum,
                            Crossing& crossing) {
  crossing.add(name, [j, sum, &crossing] {
    const Journey::Shard mine = j.shard(j.rank);
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      const Journey::Shard theirs = j.shard(peer);
      crossing.receive(j.comm, j.at(theirs.begin), j.bytes(theirs.count), peer);
      crossing.send(j.comm, sum, j.bytes(mine.count), peer);
    }
  });
}

void gather_directly(const Journey& j, Crossing& crossing) {
  add_messages_of_owners(kGather, j, j.at(j.shard(j.rank).begin), crossing);
}

// In round s each member hands on the sum of shard `rank - s - 1` so far, and adds what it has
// of shard `rank - s - 2` to the sum that comes: after n-1 rounds it has the whole of its own.
void scatter_round_a_ring(const Journey& j, Crossing& crossing) {
  const int next = (j.rank + 1) % j.size, previous = (j.rank + j.size - 1) % j.size;
  const auto shard = [j](int index) { return j.shard((index + 2 * j.size) % j.size); };
  for (int round = 0; round < j.size - 1; ++round) {
    const Journey::Shard leaves = shard(j.rank - round - 1), comes = shard(j.rank - round - 2);
    crossing.add(kScatter, [j, leaves, comes, next, previous, &crossing] {
      crossing.receive(j.comm, crossing.inbox(j.bytes(comes.count)), j.bytes(comes.count),
                       previous);
      crossing.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), next);
    });
    crossing.add(kSum,
                 [j, comes, &crossing] { add_to(j, comes, crossing.inbox(j.bytes(comes.count))); });
  }
}

void gather_round_a_ring(const Journey& j, Crossing& crossing) {
  const int next = (j.rank + 1) % j.size, previous = (j.rank + j.size - 1) % j.size;
  const auto shard = [j](int index) { return j.shard((index + j.size) % j.size); };
  for (int round = 0; round < j.size - 1; ++round) {
    const Journey::Shard leaves = shard(j.rank - round), comes = shard(j.rank - round - 1);
    crossing.add(kGather, [j, leaves, comes, next, previous, &crossing] {
      crossing.receive(j.comm, j.at(comes.begin), j.bytes(comes.count), previous);
      crossing.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), next);
    });
  }
}

// Thakur, Rabenseifner and Gropp, 2005. Members beyond the largest power of two first hand all
// they have to a partner, and are handed the result.
class Halving {
 public:
  Halving(const Journey& journey, Crossing& crossing)
      : j_(journey), crossing_(crossing), power_(largest_power_within(journey.size)) {}

  void add_reduce_scatter() const {
    const int partner = j_.rank ^ power_;
    if (j_.rank >= power_) return exchange(kScatter, partner, {0, 0}, {0, j_.count});
    if (partner < j_.size) take_in(partner, {0, j_.count}, {0, 0});
    int first = 0;
    for (int half = power_ / 2; half > 0; half /= 2) {
      const bool upper = (j_.rank & half) != 0;
      const int kept = upper ? first + half : first, given = upper ? first : first + half;
      take_in(j_.rank ^ half, shards(kept, half), shards(given, half));
      first = kept;
    }
  }

  void add_all_gather() const {
    const int partner = j_.rank ^ power_;
    if (j_.rank >= power_) return exchange(kGather, partner, {0, j_.count}, {0, 0});
    for (int half = 1; half < power_; half *= 2) {
      const int mine = j_.rank / half * half;
      exchange(kGather, j_.rank ^ half, shards(mine ^ half, half), shards(mine, half));
    }
    if (partner < j_.size) exchange(kGather, partner, {0, 0}, {0, j_.count});
  }

 private:
  // So many neighbouring shards of the largest power of two.
  Journey::Shard shards(int first, int number) const {
    Journey even = j_;
    even.owners = power_;
    const Journey::Shard begin = even.shard(first), last = even.shard(first + number - 1);
    return {begin.begin, last.begin + last.count - begin.begin};
  }

  void exchange(const char* name, int peer, Journey::Shard comes, Journey::Shard leaves) const {
    crossing_.add(name, [j = j_, &crossing = crossing_, peer, comes, leaves] {
      crossing.receive(j.comm, j.at(comes.begin), j.bytes(comes.count), peer);
      crossing.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), peer);
    });
  }

  void take_in(int peer, Journey::Shard comes, Journey::Shard leaves) const {
    crossing_.add(kScatter, [j = j_, &crossing = crossing_, peer, comes, leaves] {
      crossing.receive(j.comm, crossing.inbox(j.bytes(comes.count)), j.bytes(comes.count), peer);
      crossing.send(j.comm, j.at(leaves.begin), j.bytes(leaves.count), peer);
    });
    crossing_.add(kSum, [j = j_, &crossing = crossing_, comes] {
      add_to(j, comes, crossing.inbox(j.bytes(comes.count)));
    });
  }

  Journey j_;
  Crossing& crossing_;
  int power_;
};

}  // namespace

Route route_named(const std::string& name) {
  constexpr std::array<std::pair<const char*, Route>, 4> kRoutes{{{"whole", Route::whole},
                                                                  {"direct", Route::direct},
                                                                  {"halving", Route::halving},
                                                                  {"ring", Route::ring}}};
  for (const auto& [known, route] : kRoutes) {
    if (name == known) return route;
  }
  throw Error("EASYDDL_ROUTE must be one of whole, direct, halving and ring. Received: '" + name +
              "'");
}

Journey::Shard Journey::shard(int owner) const {
  const size_t n = static_cast<size_t>(owners), i = static_cast<size_t>(std::min(owner, owners));
  const size_t begin = count / n * i + std::min(i, count % n);
  return {begin, owner < owners ? count / n + (i < count % n ? 1 : 0) : 0};
}

Route cheapest_route(size_t bytes, int members) {
  Route best = Route::whole;
  for (Route route : {Route::direct, Route::halving, Route::ring}) {
    if (route == Route::direct && members > kMostSenders) continue;
    const double size = static_cast<double>(bytes);
    if (cost(route, size, members) < cost(best, size, members)) best = route;
  }
  return best;
}

bool halving_is_even(const Journey& journey) {
  return journey.owners == journey.size && largest_power_within(journey.size) == journey.size;
}

void add_reduce_scatter(Route route, const Journey& journey, Crossing& crossing) {
  if (route == Route::ring) return scatter_round_a_ring(journey, crossing);
  if (route == Route::halving) return Halving(journey, crossing).add_reduce_scatter();
  scatter_directly(journey, crossing);
}

void add_all_gather(Route route, const Journey& journey, Crossing& crossing) {
  if (route == Route::ring) return gather_round_a_ring(journey, crossing);
  if (route == Route::halving) return Halving(journey, crossing).add_all_gather();
  gather_directly(journey, crossing);
}

void add_reduce_scatter_from_gpu(const OnGpu& there, Crossing& crossing) {
  add_messages_to_owners("reduce-scatter from GPUs", there.journey, crossing);
  crossing.add(kSum, [there, &crossing] {
    const Journey& j = there.journey;
    const size_t count = j.shard(j.rank).count, bytes = j.bytes(count);
    if (count == 0) return;  // no owner
    uint8_t* inbox = crossing.inbox(bytes * static_cast<size_t>(j.size));
    std::vector<const void*> sources;
    for (int peer = 0; peer < j.size; ++peer) {
      const size_t i = static_cast<size_t>(peer);
      uint8_t* source = peer == j.rank ? there.mine : inbox + bytes * i;
      if (!there.factors.empty()) scale(source, source, count, j.dtype, there.factors[i]);
      sources.push_back(source);
    }
    accumulate(crossing.data.data(), sources.data(), sources.size(), count, j.dtype, j.op);
  });
}

void add_all_gather_to_gpu(const OnGpu& there, Crossing& crossing) {
  crossing.add("round", [there, &crossing] {
    const Journey& j = there.journey;
    finish(there.mine, crossing.data.data(), j.shard(j.rank).count, j.dtype, j.op, 1);
  });
  add_messages_of_owners("all-gather to GPUs", there.journey, there.mine, crossing);
}

void add_whole(const Journey& journey, Crossing& crossing) {
  crossing.add("exchange across hosts", [j = journey, &crossing] {
    const size_t bytes = j.bytes(j.count);
    uint8_t* inbox = crossing.inbox(bytes * static_cast<size_t>(j.size));
    for (int peer = 0; peer < j.size; ++peer) {
      if (peer == j.rank) continue;
      crossing.receive(j.comm, inbox + bytes * static_cast<size_t>(peer), bytes, peer);
      crossing.send(j.comm, j.data, bytes, peer);
    }
  });
  crossing.add(kSum, [j = journey, &crossing] { sum_in_order(j, crossing, j.data, j.count); });
}

}  // namespace easyddl
