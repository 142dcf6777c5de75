"""What a registration costs: memory, threads, communicators of MPI and seconds, on each rank.

    python tutorials/benchmarks/communicators.py
    python tutorials/benchmarks/communicators.py --sums 1000

Each layer of `SyncBatchNormalization` registers a sum inside of the step, and one for its
gradients. Jobs of two ranks, on one host and on two that this machine plays, train models with
some of these layers for two steps. The table holds what a rank comes to hold then, on the rank
that holds most, and how much that is more than without such layers; `plain` are models with as many
of Keras's own layers, which tell what the layers themselves cost. With `--sums` no model is
trained: the ranks make so many sums, one after the other, and tell whether anything runs out.

Columns: resident memory, and proportionally so (what ranks share is divided among them); the
engine's own shared memory, whole; threads; communicators that MPI can give no more; seconds in
which sums were registered; and those of the whole fit, in which frameworks compile.
"""

import argparse
import json
import os
import pathlib
import re
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[2] / "tests" / "support")]
import mpi  # noqa: E402 - after where it lies has been told

LAYOUTS = ("a,a", "a,b")
BATCH, FEATURES = 4, 8
MOST_COMMUNICATORS = 5000  # that are asked for, where MPI sets no bound that is met
MIB = 2**20


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, nargs="+", default=[0, 20, 200])
    parser.add_argument("--plain", action="store_true", help="Keras's own layers, too")
    parser.add_argument("--sums", type=int, help="make so many sums, and train nothing")
    parser.add_argument("--hosts", nargs="+", default=LAYOUTS)
    parser.add_argument("--backend", default=os.environ.get("KERAS_BACKEND", "torch"),
                        help="torch by default, which compiles nothing")  # fmt: skip
    parser.add_argument("--leave-free", type=int, default=6 * 2**30, metavar="BYTES",
                        help="make no more sums where the machine has less memory")  # fmt: skip
    parser.add_argument("--json", type=pathlib.Path, help="writes the figures to a file")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def held():
    """What this process holds: bytes, and threads."""
    rollup = pathlib.Path("/proc/self/smaps_rollup").read_text()
    of = {name: 1024 * int(kib) for name, kib in re.findall(r"(\w+): +(\d+) kB", rollup)}
    shared = 0
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if "memfd:easyddl" in line:
            begin, end = line.split()[0].split("-")
            shared += int(end, 16) - int(begin, 16)
    threads = len(os.listdir("/proc/self/task"))
    return {"rss": of["Rss"], "pss": of["Pss"], "shared": shared, "threads": threads}


def communicators_left():
    """How many more communicators MPI gives. Collective."""
    from mpi4py import MPI

    made = []
    try:
        while len(made) < MOST_COMMUNICATORS:
            made.append(MPI.COMM_WORLD.Dup())
    except MPI.Exception:
        pass
    for comm in made:
        comm.Free()
    return len(made)


class Registrations:
    """Counts sums, and the seconds in which they are made."""

    def __init__(self):
        from easyddl.reducer.in_step_sum import InStepSum

        self.count, self.seconds = 0, 0.0
        original = InStepSum.__init__

        def timed(*arguments, **named):
            begin = time.perf_counter()
            original(*arguments, **named)
            self.seconds += time.perf_counter() - begin
            self.count += 1

        InStepSum.__init__ = timed


def train(layers, is_plain):
    """Two steps of a model with so many layers of normalization."""
    import keras
    import numpy as np

    import easyddl as ddl

    ddl.init()
    registrations = Registrations()
    make = keras.layers.BatchNormalization if is_plain else ddl.SyncBatchNormalization
    stack = [make() for _ in range(layers)]
    model = keras.Sequential([keras.layers.Input((FEATURES,)), *stack, keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = np.random.default_rng(ddl.rank()).standard_normal((2 * BATCH, FEATURES), np.float32)
    begin = time.perf_counter()
    model.fit(x, x[:, :1], batch_size=BATCH, verbose=0,
              callbacks=[ddl.DDLCallback(), ddl.DDLGlobalVariablesCallback()])  # fmt: skip
    found = {"sums": registrations.count, "setup": registrations.seconds}
    return {**found, "fit": time.perf_counter() - begin, **held()}


def make_sums(count, leave_free):
    """So many sums, until something runs out: that, and what they hold."""
    import easyddl as ddl
    from easyddl.reducer.in_step_sum import InStepSum

    ddl.init()
    before, begin = held(), time.perf_counter()
    sums, ended = [], "nothing ran out"
    while len(sums) < count:
        low = float(mpi.available_bytes() < leave_free)
        if ddl.allreduce(low, "max"):
            ended = f"stopped, as the machine has less than {leave_free / 2**30:.0f} GiB left"
            break
        try:
            sums.append(InStepSum(f"sum {len(sums)}", (FEATURES,)))
        except Exception as error:
            ended = f"{type(error).__name__}: {error}"
            break
    seconds = time.perf_counter() - begin
    more = {f"{name}_more": value - before[name] for name, value in held().items()}
    return {"sums": len(sums), "setup": seconds, "ended": ended, **more}


def run_in_job(options):
    """What a rank does; the root prints what all ranks tell."""
    what, count, *more = options.job.split(":")
    if what == "sums":
        mine = make_sums(int(count), options.leave_free)
    else:
        mine = train(int(count), what == "plain")
        mine["left"] = communicators_left()
    path = pathlib.Path(more[0], f"{os.getpid()}.json")
    path.write_text(json.dumps(mine))


def job(options, hosts, what):
    """Runs a job; returns what each rank tells."""
    ranks = hosts.count(",") + 1
    env = {"EASYDDL_HOSTS": hosts, "KERAS_BACKEND": options.backend}
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["--job", f"{what}:{folder}", "--leave-free", options.leave_free]
        done = mpi.run(ranks, __file__, *arguments, env=env, timeout=900)
        told = [json.loads(path.read_text()) for path in pathlib.Path(folder).iterdir()]
    if done.returncode != 0 or len(told) != ranks:
        print(f"{what.split(':')[:2]} on {hosts} ended with status {done.returncode}:")
        print(done.stdout[-3000:], flush=True)
    return told


def most(told):
    """The most of any rank, but for what is left."""
    return {name: (min if name == "left" else max)(each[name] for each in told) for name in told[0]}


def row(found, first):
    """A line of the table, and how much more than the first it is."""
    sizes = [(found[name] / MIB, (found[name] - first[name]) / MIB)
             for name in ("rss", "pss", "shared")]  # fmt: skip
    text = "".join(f"{size:9.0f} {f'({more:+.0f})':>8}" for size, more in sizes)
    text += f"{found['threads']:6} {'({:+d})'.format(found['threads'] - first['threads']):>7}"
    used = (
        "   many" if found["left"] == MOST_COMMUNICATORS else f"{first['left'] - found['left']:7}"
    )
    return f"{text}{used}{found['setup']:8.2f}{found['fit']:8.1f}"


def show_layers(options):
    figures = []
    kinds = ["sync", *(["plain"] if options.plain else [])]
    for hosts in options.hosts:
        print(f"\n{options.backend}, ranks on hosts {hosts}; MiB, in brackets more than without")
        print(f"{'layers':>12} {'sums':>5}{'resident':>13}{'proportional':>18}{'engine shared':>18}"
              f"{'threads':>13}{'comms':>8}{'set-up':>8}{'fit':>8}")  # fmt: skip
        first = None
        for what, layers in [(kind, n) for kind in kinds for n in options.layers]:
            if what == "plain" and layers == 0:
                continue
            told = job(options, hosts, f"{what}:{layers}")
            if not told:
                continue
            found = most(told)
            first = first or found
            name = f"{'plain ' * (what == 'plain')}{layers}"
            print(f"{name:>12} {found['sums']:>5}{row(found, first)}", flush=True)
            figures.append({"hosts": hosts, "what": what, "layers": layers, **found})
    return figures


def show_sums(options):
    figures = []
    for hosts in options.hosts:
        told = job(options, hosts, f"sums:{options.sums}")
        for each in told[:1]:
            more = ", ".join(f"{name} {each[f'{name}_more'] / MIB:+.0f} MiB"
                             for name in ("rss", "pss", "shared"))  # fmt: skip
            print(f"hosts {hosts}: {each['sums']} of {options.sums} sums in {each['setup']:.1f} s; "
                  f"a rank holds {more}, {each['threads_more']:+d} threads more; "
                  f"{each['ended']}", flush=True)  # fmt: skip
            figures.append({"hosts": hosts, **each})
    return figures


def main():
    options = parse()
    if options.job:
        return run_in_job(options)
    figures = show_layers(options) if options.sums is None else show_sums(options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
