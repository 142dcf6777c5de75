"""Jobs on several hosts: network namespaces of one machine, joined by TCP at 1 Gbit/s."""

import json
import pathlib
import re

import mpi
import network
import pytest

SCRIPT = pathlib.Path(__file__).with_name("hosts_checks.py")
FAULTY = mpi.TESTS / "runtime" / "faulty_job.py"
TIMEOUT = 240

REASON = network.missing() or ("needs MPICH's mpirun" if mpi.is_open_mpi() else None)
pytestmark = [pytest.mark.mpirun, pytest.mark.skipif(REASON is not None, reason=str(REASON))]


@pytest.mark.parametrize(
    ("hosts", "local_size", "racks", "known"),
    [
        pytest.param(2, 2, "", True, marks=pytest.mark.gate),
        pytest.param(2, 4, "", True, marks=pytest.mark.soak),
        pytest.param(4, 2, "", True, marks=pytest.mark.soak),
        (5, 1, "x,y,x,y,y", True),
        # Halving sends no more between racks that it does not know, if hosts are listed by rack.
        (4, 1, "x,x,y,y", False),
    ],
)
def test_on_hosts(hosts, local_size, racks, known, tmp_path):
    with network.Network(hosts, mbit=1000, racks=racks) as net:
        env = net.environment(
            {
                "PYTHONPATH": mpi.environment()["PYTHONPATH"],
                "EASYDDL_RACKS": racks if known else "",
                "EASYDDL_TEST_RESULTS": str(tmp_path),
                "EASYDDL_TEST_LOCAL_SIZE": str(local_size),
                "EASYDDL_TEST_UPLINKS": json.dumps(net.uplinks()),
            }
        )
        done = mpi.run_command(net.mpirun(local_size, [SCRIPT]), env, TIMEOUT)
    for rank in range(hosts * local_size):
        results = json.loads((tmp_path / f"{rank}.json").read_text())
        assert set(results) == set(mpi.checks_of(SCRIPT)), done.stdout
        assert set(results.values()) == {"ok"}, done.stdout
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("fault", ["raise_error", "kill"])
def test_a_rank_that_fails_ends_the_job_on_all_hosts(fault):
    with network.Network(2) as two:
        command = two.mpirun(2, [FAULTY, fault, "3"])
        done = mpi.run_command(command, two.environment(), TIMEOUT)
    assert done.returncode != 0
    assert re.search(r"easyddl: rank 3 on host h2 (failed|\(process \d+\) died)", done.stdout), (
        done.stdout
    )
