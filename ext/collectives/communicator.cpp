#include "collectives/communicator.h"

#include <algorithm>
#include <utility>

#include "collectives/communicator_call.h"
#include "collectives/message_tags.h"
#include "collectives/signal_guard.h"
#include "common/check.h"
#include "common/keep_forever.h"
#include "mpi/agreement.h"

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

// A slot need not be longer than what is to be carried.
size_t slot_bytes_for(size_t bytes, const Topology& topology) {
  const size_t chunk = topology.num_nodes > 1 ? kChunkOnSeveral : kChunkOnOneHost;
  return std::min(bytes, chunk);
}

// Of an exception of Python's the message alone, without the traceback.
std::string first_paragraph(const std::string& text) { return text.substr(0, text.find("\n\n")); }

}  // namespace

Communicator::Communicator(World& world, size_t most_bytes)
    : world_(world),
      topology_(world.topology()),
      id_(world.exit_protocol().add_communicator()),
      tag_(first_tag(world.comm(), id_)),
      local_(topology_, slot_bytes_for(std::max(most_bytes, kAtOnce), topology_),
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
  const std::string first = world_.stall_inspector().failure_of(id_);
  if (!first.empty()) return first;
  const std::lock_guard<std::mutex> lock(failure_mutex_);
  return own_failure_;
}

// Not under the communicator's lock, which another thread may hold for as long as its collective
// takes.
void Communicator::give_up(const std::string& why) {
  const std::string reason = first_paragraph(why);
  {
    const std::lock_guard<std::mutex> lock(failure_mutex_);
    if (own_failure_.empty()) own_failure_ = reason;
  }
  world_.stall_inspector().announce_failure(id_, reason);
}

void Communicator::idle() {
  if (user_idle_) {
    const Interruption interruption(fingerprint_->text);
    user_idle_();
  }
  world_.exit_protocol().check(id_, number_, fingerprint_->text, topology_);
  if (slow_ != number_) {
    slow_ = number_;
    slow_since_ = std::chrono::steady_clock::now();
  }
  world_.stall_inspector().check(id_, number_, fingerprint_->text, slow_since_, goes_elsewhere_);
}

void Communicator::barrier(const Fingerprint& fingerprint) {
  collective("barrier", 0, fingerprint, [&] { rendezvous(fingerprint); });
}

std::vector<int64_t> Communicator::gather_values(int64_t value, const Fingerprint& fingerprint) {
  std::vector<int64_t> all;
  collective("gather values", sizeof value * static_cast<size_t>(topology_.size), fingerprint, [&] {
    rendezvous(fingerprint);
    all = values_of_all(value);
  });
  return all;
}

void Communicator::take_part(const char* name, size_t bytes, const Fingerprint& fingerprint,
                             const std::function<void(const Idle&)>& run) {
  collective(name, bytes, fingerprint, [&] {
    goes_elsewhere_ = true;
    run(idle_);
    goes_elsewhere_ = false;
  });
}

}  // namespace easyddl
