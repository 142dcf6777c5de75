// Gathers one value of each host or rank, within a collective.
#pragma once

#include <cstdint>
#include <vector>

#include "collectives/collective_context.h"

namespace easyddl {

// Returns the values of all hosts, in their order. Called by all leaders of a shard.
std::vector<uint64_t> values_of_hosts(CollectiveContext& context, uint64_t value);

// Returns the values of all ranks, in their order. Called by all ranks.
std::vector<int64_t> values_of_ranks(CollectiveContext& context, int64_t value);

}  // namespace easyddl
