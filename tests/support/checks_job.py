"""Run under mpirun by `test_checks.py`: checks of one or more files, in one job.

mpirun -np 3 python checks_job.py fit:check_a_name metrics:check_another ...
"""

import sys

import keras
import mpi
import ranks


class Checks(dict):
    """Finds `FILE:CHECK` when it is its turn: importing a file may change what others find."""

    def __missing__(self, name):
        file, _, check = name.partition(":")
        if f"{file}_checks" not in sys.modules:
            # Layers get their names anew, as in a job of its own: the root may have made more.
            keras.utils.clear_session()
        return getattr(mpi.import_checks(file), check)


if __name__ == "__main__":
    sys.argv.append("end:assert_world_works")
    mpi.run_checks(Checks({"end:assert_world_works": ranks.assert_world_works}))
