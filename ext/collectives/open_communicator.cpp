#include "collectives/open_communicator.h"

#include "collectives/barrier.h"
#include "mpi/agreement.h"

namespace easyddl {

std::unique_ptr<Communicator> open_communicator(World& world, size_t most_bytes) {
  std::unique_ptr<Communicator> communicator;
  all_or_none(world.comm(),
              [&] { communicator = std::make_unique<Communicator>(world, most_bytes); });
  return communicator;
}

std::unique_ptr<Communicator> open_child(Communicator& parent, const std::string& what,
                                         size_t most_bytes) {
  World& world = parent.world();
  uninterruptible_barrier(parent, Fingerprint("the creation of " + what));
  std::unique_ptr<Communicator> child;
  all_or_none(world.comm(), [&] {
    child = std::make_unique<Communicator>(world, most_bytes);
    world.stall_inspector().add_child(child->id(), parent.id());
  });
  return child;
}

}  // namespace easyddl
