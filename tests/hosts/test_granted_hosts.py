"""The comparison of the hosts that a job runs on with those that were named for it."""

import pytest

from easyddl.hosts import granted_hosts, host_list
from easyddl.launch.start import placement
from easyddl.launch.start.request import Request

HOSTFILE = "launcher.job.svc slots=1\nworker-0.job.svc slots=1\nworker-1.job.svc slots=1\n"


@pytest.mark.parametrize(
    ("variable", "value", "hosts", "words"),
    [
        (
            "OMPI_MCA_orte_default_hostfile", HOSTFILE, ["launcher"] * 3,
            [
                "The 3 ranks run on 1 host (launcher)",
                "the hostfile of OMPI_MCA_orte_default_hostfile has 3 hosts",
                "PRTE_MCA_prte_default_hostfile",
            ],
        ),
        ("HYDRA_HOST_FILE", HOSTFILE, ["a", "b", "c"], None),
        ("HYDRA_HOST_FILE", HOSTFILE, ["a", "b"], None),
        ("HYDRA_HOST_FILE", HOSTFILE, ["a"], None),
        ("I_MPI_HYDRA_HOST_FILE", "a slots=2\nb slots=2\n", ["a", "a"], None),
        ("I_MPI_HYDRA_HOST_FILE", "a slots=2\nb slots=2\n", ["a"] * 3, ["run on 1 host"]),
        ("LSB_MCPU_HOSTS", "a 2 b 2", ["a"] * 4, ["the allocation of LSF has 2 hosts"]),
        ("OMPI_MCA_orte_default_hostfile", "none", ["a"] * 4, None),
        ("HOME", "/", ["a"] * 4, None),
    ],
)  # fmt: skip
def test_fewer_hosts_than_a_hostfile_or_scheduler_names(variable, value, hosts, words, tmp_path):
    if value.endswith("\n"):
        (tmp_path / "hosts").write_text(value)
        value = str(tmp_path / "hosts")
    found = granted_hosts.fewer_than_allocated({variable: value}, len(hosts), hosts)
    if words is None:
        assert found is None
    else:
        assert all(each in found for each in words)


def hellos(*hosts, version="1"):
    return {
        rank: {
            "host": host,
            "kernel": host,
            "addresses": ["10.0.0." + host[1:]],
            "version": version,
        }
        for rank, host in enumerate(hosts)
    }


def placed(text):
    return placement.place(Request(["x"], None, host_list.parse(text)), {})


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("h1:2,h2:1", hellos("h1", "h1", "h2")),
        ("10.0.0.1:1,10.0.0.2:1", hellos("h1", "h2")),
        ("alias:1,h2:1", hellos("h1", "h2")),
        ("h1.site:1,h2.site:1", hellos("h1", "h2")),
        # Hosts that were copied, names and all.
        ("h1:1,h2:1", {0: hellos("h1", "h2")[0], 1: {**hellos("h1", "h1")[1], "kernel": "copy"}}),
    ],
)
def test_what_was_granted_as_asked(asked, got):
    assert granted_hosts.problem(placed(asked), got, "1") is None


@pytest.mark.parametrize(
    ("asked", "got", "words"),
    [
        ("h1:1,h2:1", hellos("h1", "h1"), "but it runs on h1 (2 ranks)"),
        ("h1:2,h2:2", hellos("h1", "h2", "h2", "h2"), "but it runs on h1 (1 rank), h2 (3 ranks)"),
        ("h1:1,h2:1", hellos("h1", "h1"), "The names h1, h2 lead to one host"),
        ("h1:1,h2:1,h3:1", hellos("h1", "h3", "h4"), "Rank 1 was to run on h2, but it runs on h3"),
        ("h1:1,h2:1", hellos("h2", "h1"), "Rank 0 was to run on h1, but it runs on h2"),
        ("10.0.0.1:1", hellos("h2"), "Rank 0 was to run on 10.0.0.1"),
        ("h1:1", hellos("h1", version="2"), "The host h1 (rank 0) has easyddl 2, and this"),
    ],
)
def test_what_was_not_granted(asked, got, words):
    assert words in granted_hosts.problem(placed(asked), got, "1")


@pytest.mark.parametrize(
    ("asked", "got", "expected"),
    [
        ("h1:1,h2:2", hellos("h1", "h2", "h2"), {}),
        ("h1.site:1,10.0.0.2:1,localhost:1", hellos("h1", "h2", "h3"), {}),
        ("gpu:2,h2:1,node:2", hellos("h1", "h1", "h2", "h3", "h3"), {0: "gpu", 3: "node"}),
    ],
)
def test_names_that_the_hosts_do_not_give_themselves(asked, got, expected):
    assert granted_hosts.aliases(placed(asked), got) == expected


@pytest.mark.parametrize(
    ("there", "here", "expected"),
    [
        ([], ["10.0.0.2"], False),  # an alias of this host's own
        (["10.0.0.3"], ["10.0.0.3"], False),
        (["127.0.1.1"], ["10.0.0.3"], False),
        (["10.0.0.2", "10.0.0.3"], ["10.0.0.2"], False),
        (["192.0.2.7"], ["192.0.2.7"], False),  # of a router that passes connections on
        (["10.0.0.3"], ["192.0.2.7"], False),
        (["10.0.0.2"], [], False),  # an alias of ssh
        (["10.0.0.2"], ["10.0.0.3"], True),
    ],
)
def test_names_of_which_hosts_disagree(there, here, expected, monkeypatch):
    """The name h2 has led to the host h3, whose address is 10.0.0.3."""
    monkeypatch.setattr(granted_hosts, "look_up", lambda name: here)
    said = granted_hosts.contradiction("h2", hellos("h3")[0], there)
    assert bool(said) == expected
    if expected:
        words = "h2 leads to host h3, but on h3 it is the name of 10.0.0.2, and here of 10.0.0.3"
        assert words in said


def test_a_launcher_that_does_not_pass_the_cpus_on():
    on_cpus = placement.place(Request(["x"], 2, cpus=frozenset({0, 1, 2, 5})), {})
    got = hellos("h1", "h1")
    got[0]["cpus"], got[1]["cpus"] = [0, 1], [2, 5]
    assert granted_hosts.problem(on_cpus, got, "1") is None
    got[1]["cpus"] = [2, 3]
    told = granted_hosts.problem(on_cpus, got, "1")
    assert "Rank 1 may use the CPUs 2-3, but `--cpus` allows 0-2,5" in told
