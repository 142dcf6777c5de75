"""The table of launchers and schedulers, with the environments that they make."""

import pytest
from slurm import HETEROGENEOUS

from easyddl.hosts import host_list, hostfile, launchers
from easyddl.launch.start import placement
from easyddl.launch.start.request import Request

# What a rank finds: as programs printed it (MPICH, Open MPI, Slurm), or as their manuals have it
# (PALS, jsrun, Flux, Intel MPI).
RANKS = {
    "mpich": (
        {"PMI_RANK": "5", "PMI_SIZE": "8", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4",
         "PMI_FD": "9", "GFORTRAN_UNBUFFERED_PRECONNECTED": "y"},
        (8, 5, 4, 1), "Hydra",
    ),
    "intel mpi": (
        {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2",
         "I_MPI_HYDRA_UUID": "x"},
        (4, 2, 2, 0), "Hydra",
    ),
    "open mpi": (
        {"OMPI_COMM_WORLD_SIZE": "6", "OMPI_COMM_WORLD_RANK": "3",
         "OMPI_COMM_WORLD_LOCAL_SIZE": "3", "OMPI_COMM_WORLD_LOCAL_RANK": "0",
         "PMIX_NAMESPACE": "prterun-h1-1@1", "PMIX_RANK": "3"},
        (6, 3, 3, 0), "Open MPI",
    ),
    "mpirun in a slurm job": (
        {"PMI_RANK": "3", "PMI_SIZE": "4", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2",
         "SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
         "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_NODEID": "1"},
        (4, 3, 2, 1), "Hydra",
    ),
    "srun --mpi=pmi2": (
        {"PMI_RANK": "9", "PMI_SIZE": "11", "PMI_FD": "11", "SLURM_STEP_NUM_TASKS": "11",
         "SLURM_PROCID": "9", "SLURM_LOCALID": "1", "SLURM_STEP_TASKS_PER_NODE": "4(x2),3",
         "SLURM_NODEID": "2"},
        (11, 9, 3, 1), "Hydra",
    ),
    "srun --mpi=pmix": (
        {"SLURM_STEP_NUM_TASKS": "11", "SLURM_PROCID": "4", "SLURM_LOCALID": "0",
         "SLURM_STEP_TASKS_PER_NODE": "4(x2),3", "SLURM_NODEID": "1", "PMIX_RANK": "4"},
        (11, 4, 4, 0), "srun",
    ),
    "pals": (
        {"PALS_SIZE": "8", "PALS_RANKID": "6", "PALS_LOCAL_SIZE": "4", "PALS_LOCAL_RANKID": "2",
         "PALS_APID": "1", "PMI_RANK": "6", "PMI_SIZE": "8"},
        (8, 6, 4, 2), "Hydra",
    ),
    "jsrun": (
        {"JSM_NAMESPACE_SIZE": "12", "JSM_NAMESPACE_RANK": "7", "JSM_NAMESPACE_LOCAL_SIZE": "6",
         "JSM_NAMESPACE_LOCAL_RANK": "1", "LSB_JOBID": "3"},
        (12, 7, 6, 1), "jsrun",
    ),
    "flux": (
        {"FLUX_JOB_SIZE": "4", "FLUX_TASK_RANK": "3", "FLUX_TASK_LOCAL_ID": "1",
         "FLUX_JOB_ID": "f1"},
        (4, 3, None, 1), "Flux",
    ),
    "salloc": (
        {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "16", "SLURM_TASKS_PER_NODE": "8(x2)"},
        (None, None, None, None), None,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_what_a_rank_is_told(name):
    environment, expected, launcher = RANKS[name]
    fields = ("size", "rank", "local_size", "local_rank")
    assert tuple(launchers.first_integer(field, environment) for field in fields) == expected
    found = launchers.of_rank(environment)
    assert found is None if launcher is None else launcher in found.name


@pytest.mark.parametrize(
    ("environment", "launcher", "expected"),
    [
        (
            {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[01-02,10],gpu3",
             "SLURM_TASKS_PER_NODE": "4(x2),3,1"},
            "Slurm's srun", "n01:4,n02:4,n10:3,gpu3:1",
        ),
        (HETEROGENEOUS, "Slurm's srun", "n1:2,n2:2,n3:1"),
        ({**HETEROGENEOUS, "SLURM_JOB_NODELIST": "n1"}, "Slurm's srun", "n1:2,n2:2,n3:1"),
        ({"PBS_NODEFILE": "a.site a.site b.site", "PBS_JOBID": "1"}, "PBS", "a.site:2,b.site:1"),
        ({"LSB_MCPU_HOSTS": "h1 4 h2 4", "LSB_JOBID": "3"}, "LSF", "h1:4,h2:4"),
        ({"LSB_MCPU_HOSTS": "batch5 1 a1 42"}, "LSF", "batch5:1,a1:42"),
        ({"LSB_DJOB_HOSTFILE": "h1 h1 h2"}, "LSF", "h1:2,h2:1"),
    ],
)  # fmt: skip
def test_slots_of_an_allocation(environment, launcher, expected, tmp_path):
    for name in environment.keys() & {"PBS_NODEFILE", "LSB_DJOB_HOSTFILE"}:
        (tmp_path / "hosts").write_text(environment[name].replace(" ", "\n") + "\n")
        environment = {**environment, name: str(tmp_path / "hosts")}
    found_launcher, found = launchers.allocated(environment)
    assert found_launcher.name == launcher
    assert ",".join(map(str, found)) == expected


@pytest.mark.parametrize("variable", launchers.HOSTFILES)
def test_a_mounted_hostfile_counts_first(variable, tmp_path):
    (tmp_path / "hosts").write_text("pod-0.svc slots=2\npod-1.svc slots=2\n")
    _, found = launchers.allocated({variable: str(tmp_path / "hosts"), "LSB_MCPU_HOSTS": "other 2"})
    assert ",".join(map(str, found)) == "pod-0.svc:2,pod-1.svc:2"


def test_no_allocation():
    assert launchers.allocated({"PMI_RANK": "1", "SLURM_JOB_NODELIST": "n1"}) is None


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({**HETEROGENEOUS, "SLURM_HET_SIZE": "3"}, r"_HET_GROUP_2 must .* SLURM_HET_SIZE is 3"),
        ({"LSB_MCPU_HOSTS": "h1 h2 4"}, "LSB_MCPU_HOSTS must be"),
        ({"PBS_NODEFILE": "/nowhere"}, "PBS_NODEFILE"),
        ({"HYDRA_HOST_FILE": "/nowhere"}, "HYDRA_HOST_FILE"),
    ],
)
def test_wrong_values(environment, words):
    with pytest.raises(ValueError, match=words):
        launchers.allocated(environment)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h1 slots=4\nh2 slots=2 max_slots=4\n", "h1:4,h2:2"),
        ("h1:4\n# none\n\nh2:2 # two\n", "h1:4,h2:2"),
        ("h1\nh2\n", "h1,h2"),
        ("h1\nh1\nh2\n", "h1:2,h2:1"),
        ("h1:4\r\nh2 slots=2\r\n\r\n", "h1:4,h2:2"),
        ("\ufeffh1:4\nh2:2\n", "h1:4,h2:2"),
        ("10.0.0.1 slots=4 # ü\nnode_2.site-a:1\n", "10.0.0.1:4,node_2.site-a:1"),
    ],
)
def test_hostfiles(text, expected, tmp_path):
    (tmp_path / "hosts").write_bytes(text.encode())
    assert ",".join(map(str, hostfile.read(tmp_path / "hosts"))) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "names no host"),
        ("h1 h2\n", "line 1"),
        ("h1 slots=no\n", "must be a positive integer"),
        ("h1\nh2 slot=4\n", "line 2"),
        ("h1 slots=2\nh1 slots=2\n", "names the host h1 2 times"),
        ("-x\n", "not a valid host name"),
        ("h1:2\nh2:2 slots=3\n", "line 2`: slots of host h2 are given twice"),
        ("h1 slots=2 slots=2\n", "line 1`: slots of host h1 are given twice"),
        ("h1:four\n", "line 1`: the slots of host h1 must be a positive integer"),
        ("h1:\n", "line 1`: the slots of host h1 must be a positive integer"),
        ("h1:2 max_slots=no\n", "line 1`: the max_slots of host h1 must be a positive"),
        (
            "h1 slots=2 max_slots=1\n",
            "line 1`: max_slots of host h1 must not be less than its slots",
        ),
        ("h1:2 max-slots=1\n", r"less than its slots. Received: slots=2, max_slots=1"),
        ("h1 max_slots=2\n", "line 1`: `max_slots=2` is not passed on .* Write `slots=2` for"),
        ("h1:2\nh2 port=2222\n", "line 2`: `port=2222` is not passed on .*. Write `Port 2222` for"),
        ("h1 user=me slots=2\n", "line 1`: `user=me` is not passed on .*. Write `User me` for"),
        ("h1:2 ifname=ib0\n", "line 1`: `ifname=ib0` is not passed on .* `--nic ib0`"),
        ("h1:2 binding=core\n", "line 1`: `binding=core` is not passed on .*. easyddl binds"),
        ("me@h1:2\n", "line 1`: a host name must not contain a user. .* `User me` for the host h1"),
        ("h1:2\n::1\n", "line 2`: '::1' has several colons"),
        ("[fe80::1]:2\n", "line 1`: '.fe80::1.:2' has several colons"),
        ("fe80::1%eth0 slots=2\n", "line 1`: 'fe80::1%eth0' has several colons"),
        ("\ufeffh1:2\n\ufeffh2:2\n", r"line 2` must .* is not a valid host name"),
        ("hö1:2\n", "line 1` must .* 'hö1' is not a valid host name"),
        ("h1:2\nh\u200b2:2\n", r"line 2` must .* 'h\\u200b2' is not a valid host name"),
    ],
)
def test_wrong_hostfiles(text, words, tmp_path):
    (tmp_path / "hosts").write_text(text)
    with pytest.raises(ValueError, match=words):
        hostfile.read(tmp_path / "hosts")


def test_a_hostfile_of_another_encoding(tmp_path):
    (tmp_path / "hosts").write_bytes(b"h1:2 # \xfcber\n")
    assert hostfile.read(tmp_path / "hosts") == [host_list.HostSlots("h1", 2)]
    (tmp_path / "hosts").write_bytes("h1:2\n".encode("utf-16"))
    with pytest.raises(ValueError, match=r"line 1` must .* is not a valid host name"):
        hostfile.read(tmp_path / "hosts")


def test_settings_that_the_launcher_itself_reads(tmp_path):
    (tmp_path / "hosts").write_text("h1 slots=2 user=me\nh2 slots=2\n")
    environment = {"HYDRA_HOST_FILE": str(tmp_path / "hosts")}
    _, found = launchers.allocated(environment)
    assert ",".join(map(str, found)) == "h1:2,h2:2"
    with pytest.raises(ValueError, match=r"HYDRA_HOST_FILE .*, line 1`: `user=me` is not passed"):
        placement.place(Request(["x"]), environment)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("::1", "'::1' has several colons"),
        ("h1:2,[fe80::1]:2", r"'\[fe80::1\]:2' has several colons"),
        ("me@h1:2", "`User me` for the host h1"),
        ("h1:2,", "'' is not a valid host name"),
        ("h1:2:3", "'h1:2:3' has several colons"),
        ("h[1-2:4", r"'h\[1-2' is not a valid host name"),
        ("h1:2,h[1-x]:4", r"not a range of numbers.* Received: 'h\[1-x\]'"),
        ("h[1-2],h2", "names the host h2 2 times"),
    ],
)
def test_wrong_lists(text, words):
    with pytest.raises(ValueError, match=words):
        host_list.parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("h[1-3]:4", "h1:4,h2:4,h3:4"),
        ("a, n[08-10,12].x:2,b:1", "a,n08.x:2,n09.x:2,n10.x:2,n12.x:2,b:1"),
        ("r[1-2]h[1,2]", "r1h1,r1h2,r2h1,r2h2"),
    ],
)
def test_ranges_of_names(text, expected):
    assert ",".join(map(str, host_list.parse(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("4(x2),3", [4, 4, 3]), ("1", [1]), ("2,2(x3)", [2, 2, 2, 2]), ("", []), ("many", [])],
)
def test_counts_of_slurm(text, expected):
    assert host_list.expand_counts(text) == expected
