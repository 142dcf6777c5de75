"""Run under mpirun by test_campaign.py: collectives, and planted errors that the script catches.

Usage: campaign_job.py FOLDER SEED PASSING

Each rank writes a line of JSON for each trial to a file of its own in the folder.
"""

import faulthandler
import json
import pathlib
import sys
import time

import without_keras  # noqa: F401  (first)

# isort: split
import campaign_plan as plan
import numpy as np
from planted import Allocations, Interrupt, outcome

import easyddl as ddl

MOST_SECONDS = 100  # a rank that takes longer hangs: it shows where it is, and dies


class Variable:
    def __init__(self, array):
        self.name, self.array = "v", array

    def numpy(self):
        return self.array

    def assign(self, array):
        self.array = array


def performed(call, x, changed):
    """Makes a call with the right arguments, but for those that are `changed`."""
    op, root = changed.get("op", call.op), changed.get("root", call.root)
    x = changed.get("x", x)
    name = changed.get("name", call.name)
    if name in ("allreduce", "reduce_scatter"):
        return getattr(ddl, name)(x, op)
    if name == "broadcast":
        return ddl.broadcast(x, root)
    if name == "allgather":
        return ddl.allgather(x)
    if name == "alltoall":
        splits = plan.splits_of(call, ddl.rank(), ddl.size())
        return ddl.alltoall(x, changed.get("splits", splits))
    if name == "broadcast_variables":
        variable = Variable(x)
        ddl.broadcast_variables([variable], root)
        return variable.array
    if name == "barrier":
        return ddl.barrier()
    thing = changed.get("thing", plan.object_of(call, ddl.rank()))
    if name == "broadcast_object":
        return ddl.broadcast_object(thing, root)
    return ddl.allgather_object(thing)


def mistakes(call, x, on_all):
    """What a rank may call in place of the call; only what is wrong on all ranks too, `on_all`."""
    ranks = ddl.size()
    strange = [{"x": "text"}, {"x": [1.0]}, {"x": None}]
    no_rows = [{"x": np.float32(1)}]
    no_numbers = [{"x": x.astype("complex64")}, {"op": "median"}]
    no_roots = [{"root": -1}, {"root": ranks}, {"root": "0"}]
    cannot_travel = [{"thing": lambda: None}]
    wrong = {
        "allreduce": [*strange, *no_numbers],
        "reduce_scatter": [*strange, *no_numbers, *no_rows],
        "broadcast": [*strange, *no_roots],
        "allgather": [*strange, *no_rows],
        "alltoall": [*strange, *no_rows, {"splits": [1]}, {"splits": "x"}],
        "broadcast_variables": no_roots,
        "broadcast_object": no_roots + cannot_travel,
        "allgather_object": cannot_travel,
        "barrier": [],
    }[call.name]
    if on_all:
        return wrong
    other_dtype = "float32" if call.dtype != "float32" else "float64"
    other_arrays = [{"x": np.zeros((ranks, 5), x.dtype)}, {"x": x.astype(other_dtype)}]
    other_op = [{"op": "max" if call.op != "max" else "min"}]
    other_root = [{"root": (call.root + 1) % ranks}]
    other = {
        "allreduce": other_arrays + other_op,
        "reduce_scatter": other_arrays + other_op,
        "broadcast": other_arrays + other_root,
        "allgather": other_arrays,
        "alltoall": [{"x": x.astype(other_dtype)}],
        "broadcast_variables": other_arrays + other_root,
        "broadcast_object": other_root,
    }.get(call.name, [])
    names = [name for name in ("barrier", "allgather_object", "allgather") if name != call.name]
    return [*wrong, *other, *({"name": name} for name in names)]


def mistake(call, x, trial):
    """The one that this rank is to make, or none."""
    possible = mistakes(call, x, trial.kind == "argument_on_all")
    if not possible:
        return {}
    one = possible[trial.detail % len(possible)]
    is_unused = "thing" in one and call.name == "broadcast_object" and call.root != ddl.rank()
    return {} if is_unused else one


class Job:
    def __init__(self):
        self.allocations, self.interrupt = Allocations(), Interrupt()
        self.rank, self.ranks = ddl.rank(), ddl.size()

    def run(self, trial):
        """Makes one trial's calls; returns what came of them."""
        here = self.rank == trial.victim or trial.kind.endswith("_on_all")
        if trial.kind == "interrupt" and here:
            self.interrupt.send_in(trial.seconds)
        found = {"kind": trial.kind, "victim": trial.victim, "at": trial.at}
        outcomes, fired_at, in_script = [], [], False
        for i, call in enumerate(trial.calls):
            x = plan.input_of(call, self.rank, self.ranks)
            expected = plan.expected_of(call, self.rank, self.ranks)
            is_here = here and i == trial.at
            pause = trial.pauses[self.rank][i]
            if trial.kind == "stall" and is_here:
                pause = trial.seconds
            try:
                self.interrupt.run(lambda pause=pause: time.sleep(pause))
            except KeyboardInterrupt:
                in_script = True
            changed = {}
            if trial.kind.startswith("memory") and is_here:
                self.allocations.plant(trial.detail % 4)
            if trial.kind.startswith("argument") and is_here:
                changed = mistake(call, x, trial)
            outcomes.append(outcome(call.name, self.act(call, x, changed), expected, x))
            if self.allocations.has_come() or changed:
                fired_at.append(i)
            if changed:
                outcomes[-1]["mistake"] = repr(changed)[:80]
        if trial.kind == "interrupt" and here:
            try:
                self.interrupt.run(self.interrupt.wait)
            except KeyboardInterrupt:
                in_script = True
            self.interrupt.is_late = False
        self.allocations.end()
        return {**found, "fired_at": fired_at, "in_script": in_script, "calls": outcomes}

    def act(self, call, x, changed):
        return lambda: self.interrupt.run(lambda: performed(call, x, changed))


def main():
    folder, seed, passing = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    faulthandler.dump_traceback_later(MOST_SECONDS, exit=True)
    job = Job()
    with pathlib.Path(folder, f"{job.rank}.jsonl").open("w") as file:
        for number, trial in enumerate(plan.trials_of(seed, job.ranks, passing)):
            file.write(json.dumps({"trial": number, **job.run(trial)}) + "\n")
            file.flush()


if __name__ == "__main__":
    main()
