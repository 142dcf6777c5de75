"""Which tests run one after the other in one worker of pytest-xdist, and which mostly wait.

A test that computes keeps cores busy, so there are few of these at a time. A test that mostly
waits, for a rank that sleeps or for the end of a job, leaves the cores to others: there are more.
"""

import re

COMPUTING = 3  # groups at a time, before those that wait; their ranks wait for each other too

# The files whose tests mostly wait. Those with one of these names run one after the other, so that
# no more of them than there are names run at a time: their deadlines are less than five seconds.
WAITING = {
    "hosts/test_doctor.py": "",
    "hosts/test_hosts.py": "",
    "hosts/test_ranks_on_hosts.py": "",
    "hosts/test_run_on_hosts.py": "",
    "hosts/test_slurm.py": "",
    "hosts/test_ssh.py": "",
    "parallel/test_campaign.py": "",
    "parallel/test_deadlines.py": "short deadlines 1",
    "parallel/test_exit.py": "",
    "parallel/test_faults.py": "",
    "parallel/test_gpu_faults.py": "",
    "parallel/test_half_way.py": "",
    "parallel/test_notebook.py": "",
    "parallel/test_preemption.py": "",
    "parallel/test_ranks.py": "",
    "parallel/test_run.py": "short deadlines 2",
    "parallel/test_start.py": "short deadlines 2",
}

# The files whose tests send signals, besides those that mostly wait.
SIGNALS = ("parallel/test_checkpoint.py", "parallel/test_scaling.py", "single/test_termination.py")


def file_of(nodeid):
    """The path of a test's file, from the folder of the tests."""
    return nodeid.partition("::")[0].removeprefix("tests/")


def mostly_waits(nodeid):
    """Whether a test mostly waits."""
    return file_of(nodeid) in WAITING


def sends_signals(nodeid):
    """Whether a test sends signals, or the processes that it starts send them."""
    return mostly_waits(nodeid) or file_of(nodeid) in SIGNALS


def group_of(nodeid):
    """The name of a test's group: its file, or a part of it.

    The checks of a job are a group, because the job runs once in a worker, and so are the tests of
    the engine with one sanitizer, which have a build of their own.
    """
    file = file_of(nodeid)
    if sanitizer := re.search(r"/test_engine\.py::\w+\[(address|thread)-", nodeid):
        return f"{file} {sanitizer[1]}"
    if job := re.search(r"/test_checks\.py::test_checks\[([^:]+):", nodeid):
        return f"{file} {job[1]}"
    return WAITING.get(file) or file
