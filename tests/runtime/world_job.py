"""Run under mpirun by the tests of the world: all of their checks, in one job."""

import mpi
import ranks

# In their order: the layout comes first, which shows in what the others find.
FILES = ("layout", "shared_memory", "collectives", "objects", "variables", "disagreement")


def check_the_end():
    ranks.assert_world_works()


if __name__ == "__main__":
    modules = map(mpi.import_checks, FILES)
    checks = {name: check for module in modules for name, check in vars(module).items()}
    mpi.run_checks({**checks, "check_the_end": check_the_end})
