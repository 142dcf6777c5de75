"""The timeline of a real job: what is in it, and that its summary is what its spans say."""

import collections
import json
import pathlib

import mpi
import pytest

from easyddl.cli import main
from easyddl.profiling import merged_timeline

pytestmark = pytest.mark.mpirun

SCRIPT = pathlib.Path(__file__).with_name("timeline_job.py")
STAGES = {"copy in", "wait in the host", "reduce", "copy out"}
ACROSS = {
    "agree across hosts",
    "wait across hosts",
    "allreduce across hosts",
    "exchange across hosts",  # the way between two hosts
    "sum across hosts",
}
CARRIERS = {"": [], "a,b,b": [0, 1]}  # of EASYDDL_HOSTS


def run_job(folder, ranks, how, hosts=""):
    env = {"EASYDDL_TIMELINE": str(folder), **({"EASYDDL_HOSTS": hosts} if hosts else {})}
    return mpi.run(ranks, SCRIPT, how, env=env, timeout=120)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((2, ""), id="two", marks=pytest.mark.gate),
        pytest.param((3, ""), id="three"),
        pytest.param((3, "a,b,b"), id="hosts"),
    ],
)
def job(request, tmp_path_factory):
    """A job's folder, its EASYDDL_HOSTS, and the spans of each rank."""
    size, hosts = request.param
    folder = tmp_path_factory.mktemp("timeline")
    done = run_job(folder, size, "well", hosts)
    assert done.returncode == 0, done.stdout
    ranks = merged_timeline.read(folder)
    assert all(rank.is_whole for rank in ranks)
    return folder, hosts, [(rank, list(rank.spans())) for rank in ranks]


def is_collective(span):
    return "communicator" in span.values


def is_inside(inner, outer):
    return outer.begin <= inner.begin and inner.end <= outer.end


def named(spans, name):
    return [span for span in spans if span.name == name]


def test_all_spans_are_there(job):
    _, hosts, ranks = job
    copied = []
    for rank, spans in ranks:
        names = {span.name for span in spans}
        want = STAGES | {"step", "bucket", "allreduce", "barrier", "broadcast"}
        assert want <= names
        assert (names >= ACROSS) == (rank.rank in CARRIERS[hosts])
        assert (ACROSS & names != set()) == (rank.rank in CARRIERS[hosts])
        assert len(named(spans, "step")) == 12
        assert len(named(spans, "bucket")) == 24
        assert "main thread" in rank.threads.values() and "reducer 1" in rank.threads.values()
        big = [span for span in named(spans, "allreduce") if span.values["bytes"] == 12_000_000]
        assert len(big) == 1 and "(3000000,)" in big[0].values["what"]
        inside = [span for span in named(spans, "copy in") if is_inside(span, big[0])]
        copied.append(sum(span.values["bytes"] for span in inside))
    # On one host a block is one rank's work, where the kernel lets ranks read each other's memory.
    shared = not hosts and sum(copied) == 12_000_000
    assert shared or copied == [12_000_000] * len(ranks)


def test_spans_of_a_thread_nest(job):
    for rank, spans in job[2]:
        for thread in rank.threads:
            mine = [span for span in spans if span.thread == thread and span.name != "bucket"]
            open_ones = []
            for span in sorted(mine, key=lambda span: (span.begin, -span.end)):
                while open_ones and open_ones[-1].end <= span.begin:
                    open_ones.pop()
                assert not open_ones or is_inside(span, open_ones[-1]), (span, open_ones[-1])
                open_ones.append(span)


def test_stages_lie_in_a_collective_and_buckets_in_a_step(job):
    for _, spans in job[2]:
        collectives = [span for span in spans if is_collective(span)]
        assert not any("control word" in each.values["what"] for each in collectives)
        steps = named(spans, "step")
        for span in spans:
            if span.name in STAGES | ACROSS:
                around = [c for c in collectives if c.thread == span.thread and is_inside(span, c)]
                assert len(around) == 1, span
            elif span.name == "bucket":
                assert sum(is_inside(span, step) for step in steps) == 1
                begun = span.values["begun"]
                assert span.begin <= begun <= span.end
                own = [
                    c
                    for c in collectives
                    if c.thread == span.thread and begun <= c.begin < span.end
                ]
                assert len(own) == 1 and is_inside(own[0], span)
                number, count, step = (span.values[key] for key in ("bucket", "buckets", "step"))
                what = f"bucket {number + 1} of {count} in step {step} of the reduction"
                assert own[0].values["what"].startswith(what)
                assert own[0].values["bytes"] == span.values["bytes"]


def test_ranks_are_in_a_collective_at_the_same_time(job):
    _, _, ranks = job
    together = collections.defaultdict(list)
    for rank, spans in ranks:
        for span in spans:
            if is_collective(span):
                key = span.values["communicator"], span.values["number"]
                together[key].append((rank.clock.error, span))
    assert len(together) > 30
    for found in together.values():
        assert len(found) == len(ranks)
        assert len({(s.name, s.values["what"], s.values["bytes"]) for _, s in found}) == 1
        if found[0][1].name == "broadcast":
            continue  # its root may have gone on before the last rank has come
        for error, span in found:
            # None is back before the last has come: true of their clocks but for the known error.
            assert all(span.end + error + e >= other.begin for e, other in found), found


def merge(capsys, folder, *arguments):
    status = main(["timeline", str(folder), *map(str, arguments)])
    return status, capsys.readouterr()


def test_the_merged_file(job, capsys, tmp_path):
    folder, _, ranks = job
    output = tmp_path / "merged.json"
    status, printed = merge(capsys, folder, "--output", output)
    assert status == 0 and not printed.err
    rows = [line.split() for line in printed.out.splitlines() if line[:4].strip().isdigit()]
    assert [row[:2] for row in rows] == [[str(rank.rank), "11"] for rank, _ in ranks]
    events = json.loads(output.read_text())["traceEvents"]
    for rank, spans in ranks:
        mine = [event for event in events if event["pid"] == rank.rank]
        headings = {e["name"]: e["args"] for e in mine if e["ph"] == "M"}
        assert headings["process_name"] == {"name": f"rank {rank.rank} on {rank.host}"}
        complete = [event for event in mine if event["ph"] == "X"]
        assert len(complete) == sum(span.name != "bucket" for span in spans)
        assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in complete)
        assert {event["tid"] for event in complete} <= set(rank.threads)
        assert_asynchronous_events_nest(mine)


def assert_asynchronous_events_nest(events):
    open_ones = collections.defaultdict(list)
    phases = collections.Counter(event["ph"] for event in events)
    assert phases["b"] == phases["e"] == 2 * (24 + 12)  # buckets; exchanges
    last = {}
    for event in sorted((e for e in events if e["ph"] in "be"), key=lambda event: event["ts"]):
        key = event["cat"], event["id2"]["local"]
        assert event["ts"] >= last.get(key, 0)
        last[key] = event["ts"]
        if event["ph"] == "b":
            open_ones[key].append(event["name"])
        else:
            assert open_ones[key].pop() == event["name"]
    assert not any(open_ones.values())


def lines(path):
    return [json.loads(text) for text in path.read_text().splitlines()]


@pytest.mark.parametrize("how", ["raise", "kill"])
def test_a_job_that_fails_leaves_its_timeline(how, capsys, tmp_path):
    done = run_job(tmp_path, 2, how)
    assert done.returncode != 0
    status, printed = merge(capsys, tmp_path)
    assert status == 0, printed.err
    for rank in range(2):
        assert f"rank {rank}'s trace ends early" in printed.err
        path = tmp_path / f"rank-{rank}.jsonl"
        steps = [x for x in lines(path) if isinstance(x, list) and x[0] == "step"]
        assert len(steps) == 12


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["{0}/file/in", "{0}/file/in"], "Rank 0 cannot: [Errno 20] Not a directory"),
        (["{0}/good", "{0}/file/in"], "Rank 1 cannot: [Errno 20] Not a directory"),
        (["{0}/good", ""], "is set on rank 0 but not on rank 1. Set it on all ranks, or on none"),
    ],
    ids=["everywhere", "on-one-rank", "unset-on-one-rank"],
)
def test_a_wrong_directory_is_an_error_on_all_ranks(values, message, tmp_path):
    (tmp_path / "file").touch()
    values = [value.format(tmp_path) for value in values]
    done = mpi.run(2, SCRIPT, "refused", tmp_path, *values, timeout=60)
    assert done.returncode != 0
    for rank in range(2):
        told = (tmp_path / f"told-{rank}").read_text()
        assert told.startswith("EASYDDL_TIMELINE ") and message in told
