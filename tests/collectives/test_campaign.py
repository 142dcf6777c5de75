"""A campaign of planted errors: right data or an error, never wrong data, never a hang.

Another seed than the usual one, and more jobs for each layout:

    EASYDDL_CAMPAIGN_SEED=7 EASYDDL_CAMPAIGN_JOBS=21 python -m pytest -m soak \\
        tests/collectives/test_campaign.py
"""

import concurrent.futures
import json
import os
import pathlib
import tempfile

import campaign_plan as plan
import mpi
import pytest
from verdicts import fired_at, problems_of

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("campaign_job.py")
SEED = int(os.environ.get("EASYDDL_CAMPAIGN_SEED", "1"))

LAYOUTS = ["a,a", "a,b", "a,a,a", "a,b,b", "a,a,a,a", "a,b,a,b"]
JOBS = int(os.environ.get("EASYDDL_CAMPAIGN_JOBS", "9"))  # for each layout
PASSING = 3  # trials in a job before the last

NEVER = 20  # the deadline of those that wait, where it is not to be what ends the wait


def run_job(hosts, seed):
    """Runs one job; returns how many of its trials are judged, by kind, and what is wrong."""
    ranks = hosts.count(",") + 1
    stalls = plan.trials_of(seed, ranks, PASSING)[-1].kind == "stall"
    deadline = plan.STALL_ABORT if stalls else NEVER
    env = {"EASYDDL_HOSTS": hosts, "EASYDDL_STALL_ABORT": str(deadline)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            done = mpi.run(ranks, SCRIPT, folder, seed, PASSING, env=env, timeout=150)
            ended = None if done.returncode == 0 else f"status {done.returncode}:\n{done.stdout}"
        except TimeoutError as error:
            ended = f"HANG: {error}"
        said = []
        for rank in range(ranks):
            path = pathlib.Path(folder, f"{rank}.jsonl")
            lines = path.read_text().splitlines() if path.exists() else []
            said.append([json.loads(line) for line in lines])
    judged, problems = [], []
    for number, trial in enumerate(zip(*said, strict=False)):
        judged.append(trial[0]["kind"] + "+" * bool(fired_at(trial)))
        problems = [f"trial {number} ({trial[0]['kind']}): {each}" for each in problems_of(trial)]
        if problems:  # the later ones follow from it
            break
    if not problems and len(judged) < PASSING + 1:
        problems = [f"only {len(judged)} trials were done"]
    if ended is not None:
        problems.append(f"the job ended with {ended}")
    command = f"EASYDDL_HOSTS={hosts} EASYDDL_STALL_ABORT={deadline} mpirun -np {ranks} python"
    again = f"{command} {SCRIPT} FOLDER {seed} {PASSING}"
    return judged, [f"{again}\n    " + "\n    ".join(problems[:4])] if problems else []


@pytest.mark.soak
@pytest.mark.parametrize("hosts", LAYOUTS)
def test_planted_errors(hosts):
    seeds = [SEED * 1_000_000 + LAYOUTS.index(hosts) * 1000 + job for job in range(JOBS)]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:  # most of a job's time it waits
        found = list(pool.map(lambda seed: run_job(hosts, seed), seeds))
    problems = [each for _, problems in found for each in problems]
    assert not problems, f"{len(problems)} of {JOBS} jobs:\n" + "\n".join(problems)
    judged = [kind for kinds, _ in found for kind in kinds]
    assert len(judged) == JOBS * (PASSING + 1)
    print(f"{len(judged)} errors were planted with the hosts {hosts}")  # shown by `pytest -rP`
    # Most of the errors were met, and not planted where nothing comes by.
    planted = [kind for kind in judged if kind.startswith(("memory", "argument"))]
    assert sum(kind.endswith("+") for kind in planted) > 0.8 * len(planted), judged
