import pathlib
import time

import mpi
import pytest

pytestmark = pytest.mark.mpirun

HOSTS_JOB = pathlib.Path(__file__).with_name("hosts_job.py")


def test_wrong_settings_are_errors_and_a_layout_gives_the_same_bits_in_every_run():
    digests = []
    for _ in range(2):
        done = mpi.run(4, HOSTS_JOB)
        assert done.returncode == 0, done.stdout
        digests.append([line for line in done.stdout.splitlines() if "digest" in line])
    assert digests[0] and digests[0] == digests[1]


def test_wrong_hosts_end_the_job(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import easyddl as ddl\nddl.rank()\n")
    start = time.monotonic()
    done = mpi.run(2, script, env={**mpi.ANY_BACKEND, "EASYDDL_HOSTS": "a,b,c"})
    assert done.returncode != 0
    assert "ValueError: EASYDDL_HOSTS must name the host of each rank" in done.stdout
    assert "There are 2 ranks. Received: 'a,b,c'" in done.stdout
    assert time.monotonic() - start < 60


def test_racks_and_routes_of_rank_zero_count_on_all(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\n"
        "from mpi4py import MPI\n"
        "rank = MPI.COMM_WORLD.rank\n"
        "os.environ['EASYDDL_RACKS'] = 'x, y, x, x' if rank == 0 else f'only rank {rank} knows'\n"
        "os.environ['EASYDDL_ALGORITHM'] = 'ring' if rank == 0 else 'whole'\n"
        "import numpy as np\n"
        "import easyddl as ddl\n"
        "from easyddl.runtime import world\n"
        "assert world.engine().world.num_groups == [2, 1]\n"
        "total = ddl.allreduce(np.full(200_003, rank + 1.0, np.float32), 'sum')\n"
        "assert (total == 10).all()\n"
        "print('all is well')\n"
    )
    env = {**mpi.ANY_BACKEND, "EASYDDL_HOSTS": "a,b,c,d"}
    done = mpi.run(4, script, env=env)
    assert done.returncode == 0 and done.stdout.count("all is well") == 4, done.stdout
    assert "EASYDDL_ROUTE" not in done.stdout
    done = mpi.run(4, script, env={**env, "EASYDDL_ROUTE": "tree"})
    assert done.returncode == 0 and done.stdout.count("EASYDDL_ROUTE is now called") == 1, (
        done.stdout
    )


@pytest.mark.parametrize("first", [True, False])
def test_mpi4py_in_the_same_script(tmp_path, first):
    lines = ["import easyddl as ddl", "assert ddl.size() == 2"]
    imports = "from mpi4py import MPI"
    script = tmp_path / "script.py"
    script.write_text(
        "\n".join(
            [
                *([imports, *lines] if first else [*lines, imports]),
                "assert MPI.Is_initialized()",
                "assert MPI.COMM_WORLD.allreduce(ddl.rank()) == 1",
                "assert ddl.allreduce(ddl.rank(), 'sum') == 1",
                "print('all is well')",
            ]
        )
    )
    done = mpi.run(2, script, env=mpi.ANY_BACKEND)
    assert done.returncode == 0 and done.stdout.count("all is well") == 2, done.stdout
