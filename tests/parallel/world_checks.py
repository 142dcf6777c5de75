"""Run under mpirun by the tests of the world: all of their checks, in one job."""

import collectives_checks
import disagreement_checks
import layout_checks
import mpi
import objects_checks
import ranks
import shared_memory_checks
import variables_checks


def check_the_end():
    ranks.assert_world_works()


if __name__ == "__main__":
    modules = (
        layout_checks,
        shared_memory_checks,
        collectives_checks,
        objects_checks,
        variables_checks,
        disagreement_checks,
    )
    checks = {name: check for module in modules for name, check in vars(module).items()}
    mpi.run_checks({**checks, "check_the_end": check_the_end})
