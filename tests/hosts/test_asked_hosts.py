"""The comparison of the hosts that a job runs on with those that were named for it."""

import pytest

from easyddl.hosts import asked_hosts


@pytest.fixture
def hostfile(tmp_path):
    path = tmp_path / "hostfile"
    path.write_text(
        "launcher.job.svc slots=1\nworker-0.job.svc slots=1\nworker-1.job.svc slots=1\n"
    )
    return str(path)


def test_open_mpi_5_that_ignores_the_hostfile(hostfile):
    environment = {"OMPI_MCA_orte_default_hostfile": hostfile}
    found = asked_hosts.problem(environment, 3, ["launcher"] * 3)
    assert "The 3 ranks run on 1 host (launcher)" in found
    assert "the hostfile of OMPI_MCA_orte_default_hostfile has 3 hosts" in found
    assert "PRTE_MCA_prte_default_hostfile" in found
    assert asked_hosts.is_certain(environment)


@pytest.mark.parametrize(
    ("size", "hosts"),
    [(3, ["a", "b", "c"]), (1, ["a"]), (2, ["a", "b"])],
)
def test_enough_hosts(size, hosts, hostfile):
    assert asked_hosts.problem({"HYDRA_HOST_FILE": hostfile}, size, hosts) is None


def test_slots_count(tmp_path):
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    environment = {"I_MPI_HYDRA_HOST_FILE": str(tmp_path / "hosts")}
    assert asked_hosts.problem(environment, 2, ["a", "a"]) is None
    assert "run on 1 host" in asked_hosts.problem(environment, 3, ["a", "a", "a"])


def test_a_part_of_an_allocation_is_no_error():
    environment = {"LSB_MCPU_HOSTS": "a 2 b 2"}
    assert "the allocation of LSF has 2 hosts" in asked_hosts.problem(environment, 4, ["a"] * 4)
    assert not asked_hosts.is_certain(environment)


@pytest.mark.parametrize("environment", [{}, {"OMPI_MCA_orte_default_hostfile": "none"}])
def test_nothing_names_hosts(environment):
    assert asked_hosts.problem(environment, 4, ["a"] * 4) is None
