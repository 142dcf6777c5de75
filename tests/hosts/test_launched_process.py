import os
import pathlib

import pytest

from easyddl.hosts import launched_process, launchers
from easyddl.runtime import entry_point

NAMES = {
    name
    for row in launchers.LAUNCHERS
    for name in (row.size, row.rank, row.local_size, row.local_rank, *row.launch)
    if name
}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for name in (*NAMES, *launchers.HOSTFILES, "SLURM_NODEID", launched_process._PROCESS):
        # Set first: what a test leaves there is then taken back, too.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_no_launcher():
    assert launched_process.size() is None
    assert launched_process.rank() == launched_process.local_rank() == 0
    assert launched_process.local_size() == 1


@pytest.mark.parametrize("value", ["", "many", "-1", "4(x2)"])
def test_what_is_no_number_is_not_believed(monkeypatch, value):
    monkeypatch.setenv("PMI_SIZE", value)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", value)
    assert launched_process.size() is None
    assert launched_process.local_size() == 1


def in_a_child(function):
    """What a forked child finds; `function` must return a bool."""
    child = os.fork()
    if child == 0:
        os._exit(int(function()))
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_ranks_children_are_workers(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert not launched_process.is_worker()
    assert not launched_process.is_worker()
    assert in_a_child(launched_process.is_worker)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ranks_that_a_notebook_starts_are_no_workers(monkeypatch):
    # A process without a launcher, which has imported easyddl, runs mpirun.
    assert not launched_process.is_worker()

    def rank_is_worker():
        os.environ.update(PMI_SIZE="2", PMI_RANK="0")
        return launched_process.is_worker()

    assert not in_a_child(rank_is_worker)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_script_that_a_script_starts_is_no_worker():
    assert not launched_process.is_worker()
    assert not in_a_child(launched_process.is_worker)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_ranks_of_another_job_that_a_rank_starts_are_no_workers(monkeypatch):
    # Of the same size, and with the same number. Open MPI and Slurm give a job a name.
    for name, value in {"PMI_SIZE": "2", "PMI_RANK": "1", "PMIX_NAMESPACE": "outer"}.items():
        monkeypatch.setenv(name, value)
    assert not launched_process.is_worker()

    def rank_is_worker():
        os.environ["PMIX_NAMESPACE"] = "inner"
        return launched_process.is_worker()

    assert not in_a_child(rank_is_worker)
    assert in_a_child(launched_process.is_worker)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["hydra_pmi_proxy", "a (strange) name"])
def test_a_launcher_among_the_ancestors_tells_a_rank_of_another_job(name, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    assert not launched_process.is_worker()

    def below(name):
        pathlib.Path("/proc/self/comm").write_text(name)
        return in_a_child(launched_process.is_worker)

    is_launcher = name in launched_process._PROGRAMS
    assert in_a_child(lambda: below(name)) is not is_launcher


def test_a_process_that_outlives_its_rank_is_a_worker(monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setattr(launched_process, "_launchers", lambda: ["17:1", "12:1"])
    assert not launched_process.is_worker()
    monkeypatch.setattr(os, "getpid", lambda: 99)
    # Its ancestors are gone, or it is now the child of what started its rank.
    for ancestors, is_worker in (([], True), (["12:1"], True), (["12:2"], False)):
        monkeypatch.setattr(launched_process, "_launchers", lambda found=ancestors: found)
        assert launched_process.is_worker() is is_worker


@pytest.mark.parametrize(
    ("rank", "chosen", "level"), [("0", None, None), ("2", None, "1"), ("2", "0", "0")]
)
def test_other_ranks_are_silent_unless_the_user_wants_them_not_to_be(
    monkeypatch, rank, chosen, level
):
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", chosen or "")
    if chosen is None:
        monkeypatch.delenv("TF_CPP_MIN_LOG_LEVEL")
    entry_point.silence_other_ranks()
    assert os.environ.get("TF_CPP_MIN_LOG_LEVEL") == level
