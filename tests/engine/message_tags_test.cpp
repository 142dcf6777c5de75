// The tags of all communicators differ.
#include "collectives/message_tags.h"

#include <limits>

#include "ranks.h"
#include "trial.h"

using namespace easyddl;

TEST(communicators_have_tags_of_their_own) {
  const MpiComm comm = MpiComm::duplicate(MPI_COMM_WORLD);
  // Every MPI has tags for this many communicators.
  for (size_t number = 1; number < 2046; ++number) {
    EXPECT(first_tag(comm.get(), number) == first_tag(comm.get(), number - 1) + kTagsOfEach);
  }
  const size_t too_many = std::numeric_limits<int>::max() / kTagsOfEach;
  EXPECT_CONTAINS(trial::error_of([&] { first_tag(comm.get(), too_many); }), "MPI_TAG_UB");
  ranks::meet();
}
