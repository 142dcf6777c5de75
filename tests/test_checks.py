"""Runs the checks of `matrix.py`: each of its jobs once, with the checks that are selected.

    python -m pytest tests/test_checks.py -k "fit and jax"

A check that fails ends its job. Those that follow it get another one. Each job is a class of tests,
because pytest-xdist runs the tests of a class in one worker.
"""

import functools

import matrix
import mpi
import pytest

pytestmark = pytest.mark.mpirun

JOB = mpi.TESTS / "support" / "checks_job.py"


def class_of(job):
    """A class with a test for each check of a job."""

    @pytest.mark.parametrize("check", job.checks, ids=lambda check: f"{job.name}:{check}")
    def test_check(self, check, request):
        mpi.require(job.backend)
        verdict = verdicts_of(job, selected(request, job))[check]
        assert verdict == "ok", verdict

    marks = [getattr(pytest.mark, job.marker)] if job.marker else []
    return type(f"Test-{job.name}", (), {"test_check": test_check, "pytestmark": marks})


globals().update({f"Test-{job.name}": class_of(job) for job in matrix.JOBS.values()})


def selected(request, job):
    """The checks of a job whose tests are run, in their order."""
    chosen = {
        item.callspec.params["check"]
        for item in request.session.items
        if item.parent is request.node.parent
    }
    return tuple(check for check in job.checks if check in chosen)


@functools.cache
def verdicts_of(job, checks):
    """What came of some checks of a job: "ok", or what went wrong."""
    found, remaining, lost = {}, list(checks), 0
    while remaining:
        run = mpi.check_job(job.ranks, JOB, tuple(remaining), job.variables)
        bad = next((check for check in remaining if run.problem(check)), None)
        if bad is None and not run.failed:
            return {**found, **dict.fromkeys(remaining, "ok")}
        bad = bad or remaining[-1]  # all are well, and the job is not: it failed at its end
        at = remaining.index(bad)
        lost = lost + 1 if at == 0 else 0
        found.update(dict.fromkeys(remaining[:at], "ok"))
        found[bad] = f"{run.problem(bad) or 'The job failed at its end.'}\n{run.ended}"
        remaining = remaining[at + 1 :]
        if lost == 2:  # no job comes as far as a check
            found.update(dict.fromkeys(remaining, f"Not run after two others failed.\n{run.ended}"))
            break
    return found


@pytest.mark.gate
def test_every_check_runs_in_a_job():
    listed = {check for job in matrix.JOBS.values() for check in job.checks}
    elsewhere = ("gpu_path", "half_way", "hosts")  # each by the test file of its name
    files = [path.stem.removesuffix("_checks") for path in mpi.TESTS.glob("*/*_checks.py")]
    assert listed == set(matrix.of(*(file for file in files if file not in elsewhere)))
    groups = (matrix.GATE, matrix.FULL, matrix.SOAK, matrix.LONGEST)
    assert len(matrix.JOBS) == sum(map(len, groups))  # each has its own name
