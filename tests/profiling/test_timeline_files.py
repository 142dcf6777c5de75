"""The merge of files that were made by hand, and what it says of those that are wrong."""

import json
import os

import pytest

from easyddl import profiling
from easyddl.cli import main
from easyddl.profiling import merged_timeline, overlap_analysis, trace_file

MS = 1_000_000


def first(rank, size, **changes):
    return {"easyddl_timeline": 1, "rank": rank, "size": size, "host": f"h{rank}", "job": "x",
            **changes}  # fmt: skip


def bucket(step, number, handed_in, begun, end, buckets=2):
    values = {"reducer": 1, "step": step, "bucket": number, "buckets": buckets, "bytes": 8,
              "in_16_bits": 0, "begun": begun * MS}  # fmt: skip
    return ["bucket", 2, handed_in * MS, (end - handed_in) * MS, values]


def write(folder, rank, *lines):
    path = folder / f"rank-{rank}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def folder(tmp_path):
    """Two ranks; the second's clock is 100 ms behind and loses 1 ms in 100."""
    for rank, (offset, later) in enumerate([(0, 0), (100, 101)]):
        start = 1000 - offset
        write(
            tmp_path,
            rank,
            first(rank, 2),
            {"clock": start * MS, "offset": offset * MS, "error": rank * 2000},
            {"lane": 1, "name": "main thread"},
            {"lane": 2, "name": "reducer 1"},
            bucket(0, 0, start, start, start + 1),
            bucket(0, 1, start, start, start + 1),
            ["copy in", 2, (start + 10) * MS, MS, {"bytes": 8}],
            bucket(1, 0, start + 10, start + 10, start + 14),
            bucket(1, 1, start + 13 + rank, start + 14, start + 20),
            ["step", 1, (start + 9) * MS, 12 * MS, {"step": 1}],
            bucket(2, 0, start + 30, start + 31, start + 33),  # cut short: there is no second
            ["barrier", 1, (start + 50) * MS, MS, {"communicator": 0, "number": 1, "bytes": 0}],
            {"clock": (start + 100) * MS, "offset": later * MS, "error": rank * 1000},
            {"end": (start + 100) * MS},
        )
    return tmp_path


def merge(capsys, folder, *arguments):
    status = main(["timeline", str(folder), *map(str, arguments)])
    return status, capsys.readouterr()


def test_clocks_drift_apart_evenly():
    clock = merged_timeline.Clock([(1000, 50, 7), (2000, 150, 9)])
    assert [clock.to_root(t) for t in (0, 1000, 1500, 2000, 3000)] == [50, 1050, 1600, 2150, 3150]
    assert clock.error == 9
    once = merged_timeline.Clock([(1000, 50, 7)])
    assert [once.to_root(t) for t in (0, 1000, 3000)] == [50, 1050, 3050]
    assert merged_timeline.Clock([]).to_root(5) == 5


def test_spans_are_in_the_time_of_the_root(folder):
    ranks = merged_timeline.read(folder)
    spans = [{(s.name, s.values.get("step")): s for s in rank.spans()} for rank in ranks]
    assert spans[0]["step", 1].begin == 1009 * MS
    assert spans[1]["step", 1].begin == 1009 * MS + 90_000
    assert spans[1]["bucket", 0].values["begun"] == 1000 * MS


@pytest.mark.parametrize(
    ("intervals", "length"),
    [([], 0), ([(0, 5)], 5), ([(3, 9), (0, 5)], 9), ([(0, 9), (2, 3)], 9), ([(0, 1), (5, 6)], 2)],
)
def test_length_of_a_union(intervals, length):
    assert overlap_analysis.length(intervals) == length


def test_exposed_and_hidden(folder):
    ranks = merged_timeline.read(folder)
    found = overlap_analysis.analyze(ranks[0].spans())
    # A bucket communicates from 1010 on, the step waits from 1013 on, and both end at 1020.
    assert found.steps == 1
    assert (found.communication, found.exposed, found.hidden) == (10 * MS, 7 * MS, 3 * MS)
    assert found.step_time == 12 * MS
    assert found.others == MS
    assert found.ends == {(1, 1): 1013 * MS}


def test_the_last_rank_is_the_slowest(folder):
    analyses = [overlap_analysis.analyze(rank.spans()) for rank in merged_timeline.read(folder)]
    lags = overlap_analysis.lags(analyses)
    assert [(lag.last, lag.steps) for lag in lags] == [(0, 1), (1, 1)]
    assert lags[0].mean == 0 and lags[1].mean == pytest.approx(1.14 * MS)


def test_the_command(folder, capsys):
    status, printed = merge(capsys, folder)
    assert status == 0 and not printed.err
    assert "2 ranks, clocks aligned to within 2.0 us" in printed.out
    rows = [line.split() for line in printed.out.splitlines()]
    assert ["0", "1", "12.000", "10.000", "7.000", "3.000", "30.0", "0.000", "0", "h0"] in rows
    assert "The slowest is rank 1 on h1: its backward passes end 1.140 ms" in printed.out
    assert "last of all ranks' in 1 of 1 steps" in printed.out
    merged = json.loads((folder / "timeline.json").read_text())
    events = merged["traceEvents"]
    assert f"{len(events)} events" in printed.out
    [copy] = [e for e in events if e["name"] == "copy in" and e["pid"] == 0]
    assert (copy["ts"], copy["dur"], copy["ph"], copy["tid"]) == (10_000, 1000, "X", 2)
    exposed = [e["ts"] for e in events if e["name"] == "exposed" and e["pid"] == 0]
    assert exposed[2:4] == [13_000, 20_000]


def test_sixteen_bits_between_hosts_are_named_once(folder, capsys):
    # Without the wait of 1.14 ms for rank 1, the step of 12 ms waits for 5.86 ms.
    assert "49 % of a step is communication" in merge(capsys, folder)[1].out
    for path in folder.glob("*.jsonl"):
        path.write_text(path.read_text().replace('"in_16_bits": 0', '"in_16_bits": 1'))
    assert "wire_dtype" not in merge(capsys, folder)[1].out


def test_output_elsewhere(folder, capsys, tmp_path):
    output = tmp_path / "elsewhere.json"
    status, printed = merge(capsys, folder, "--output", output)
    assert status == 0 and f"{output}: " in printed.out
    assert output.exists() and not (folder / "timeline.json").exists()


def test_output_that_cannot_be_written(folder, capsys):
    status, printed = merge(capsys, folder, "--output", folder / "no" / "such.json")
    assert status == 1
    text = "such.json cannot be written: No such file or directory. Name another file with"
    assert "error:" in printed.err and text in printed.err
    assert "The slowest is rank 1" in printed.out and "perfetto" not in printed.out


def test_one_rank_without_gradients(tmp_path, capsys):
    write(tmp_path, 0, first(0, 1), {"clock": 1, "offset": 0, "error": 0}, {"end": 5})
    status, printed = merge(capsys, tmp_path)
    assert status == 0
    assert printed.out.startswith("1 rank\n")
    assert "none were reduced after the first step" in printed.out


def test_a_job_that_was_cut_short(folder, capsys):
    path = folder / "rank-1.jsonl"
    path.write_text(path.read_text().rsplit("\n", 2)[0][:-3])  # in the middle of a line
    status, printed = merge(capsys, folder)
    assert status == 0
    assert (
        "note: rank 1's trace ends early: the job was cut short, or it is still running"
        in printed.err
    )
    assert "rank 0's trace" not in printed.err


def test_files_of_a_larger_job_before_this_one(folder, capsys):
    write(folder, 2, first(2, 3, job="earlier"))
    status, _ = merge(capsys, folder)
    assert status == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: folder.rename(folder.parent / "elsewhere"), "There is no directory {}."),
        (
            lambda folder: [path.unlink() for path in folder.iterdir()],
            "There is no timeline in {}: no file rank-0.jsonl. Run the job with EASYDDL_TIMELINE=",
        ),
        (
            lambda folder: (folder / "rank-0.jsonl").unlink(),
            "The job had 2 ranks, but {} has no file of rank 0. Copy",
        ),
        # The files are counted, not the ranks.
        (
            lambda folder: write(folder, 0, first(0, 10**18)),
            f"The job had {10**18} ranks, but {{}} has no file of rank 2, 3, 4, 5, 6, 7, 8, 9, "
            f"10, 11 and of {10**18 - 12} more. Copy",
        ),
    ],
)
def test_files_that_are_missing(folder, capsys, change, message):
    change(folder)
    status, printed = merge(capsys, folder)
    assert status == 1
    assert printed.err.startswith(f"easyddl timeline: error: {message.format(folder, folder)}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty or cut off in its first line"),
        ('{"easyddl_timeline": 1, "ra', "is empty or cut off in its first line"),
        ("{}\n", "this version of easyddl writes"),
        ("[1, 2]\n", "this version of easyddl writes"),
        ("some text\n", "is damaged in line 1"),
        (json.dumps(first(1, 2)) + '\n["copy in",1,\n{}\n', "is damaged in line 2"),
        (json.dumps(first(1, 2)) + '\n["copy in",1]\n', "is damaged in line 2"),
        (json.dumps(first(1, 2)) + '\n["a",1,"b",2,{}]\n', "is damaged in line 2"),
        (json.dumps(first(1, 2, job="y")) + "\n", "is of another run than"),
        (json.dumps(first(1, 2, easyddl_timeline=2)) + "\n", "this version of easyddl writes"),
        (json.dumps(first(0, 2)) + "\n", "is the file of rank 0"),
        (json.dumps(first(2, 2)) + "\n", "this version of easyddl writes"),
        (json.dumps(first(True, 2)) + "\n", "this version of easyddl writes"),
        ('{"easyddl_timeline": 1}\n', "this version of easyddl writes"),
    ],
)
def test_a_file_that_is_wrong(folder, capsys, text, message):
    (folder / "rank-1.jsonl").write_text(text)
    status, printed = merge(capsys, folder)
    assert status == 1
    assert message in printed.err and "rank-1.jsonl" in printed.err


class OneRank:
    """As much of mpi4py's communicator as is needed."""

    rank, size = 0, 1

    def bcast(self, value):
        self.sent = value
        return value

    def allgather(self, value):
        return [value]


def test_the_variable(tmp_path, monkeypatch):
    monkeypatch.delenv("EASYDDL_TIMELINE", raising=False)
    assert not trace_file.is_wanted() and trace_file.open_file(OneRank(), "host") is None
    monkeypatch.setenv("EASYDDL_TIMELINE", " ")
    assert not trace_file.is_wanted() and trace_file.open_file(OneRank(), "host") is None
    monkeypatch.setenv("EASYDDL_TIMELINE", str(tmp_path / "new" / "one"))
    assert trace_file.is_wanted()
    comm = OneRank()
    os.close(trace_file.open_file(comm, 'a "host"'))
    rank = merged_timeline.Rank(tmp_path / "new" / "one" / "rank-0.jsonl")
    assert (rank.rank, rank.size, rank.host, rank.job) == (0, 1, 'a "host"', comm.sent)
    assert not rank.is_whole


def start_file(folder, monkeypatch):
    monkeypatch.setenv("EASYDDL_TIMELINE", str(folder))
    os.close(trace_file.open_file(OneRank(), "host"))


def test_an_earlier_jobs_file_is_replaced(tmp_path, monkeypatch):
    path = tmp_path / "rank-0.jsonl"
    path.write_text("much of an earlier job\n" * 100)
    other = tmp_path / "another name of it"
    other.hardlink_to(path)
    start_file(tmp_path, monkeypatch)
    assert merged_timeline.Rank(path).size == 1
    assert other.read_text().startswith("much of an earlier job")


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.symlink_to(path.parent / "precious"),
        lambda path: path.symlink_to(path.parent / "nothing"),
        os.mkfifo,
        os.mkdir,
    ],
)
def test_nothing_but_a_regular_file_is_replaced(make, tmp_path, monkeypatch):
    (tmp_path / "precious").write_text("precious")
    make(tmp_path / "rank-0.jsonl")
    with pytest.raises(ValueError, match="is a symbolic link or a special file"):
        start_file(tmp_path, monkeypatch)
    assert (tmp_path / "precious").read_text() == "precious"
    assert not (tmp_path / "nothing").exists()


def test_the_public_functions():
    assert sorted(profiling.__all__) == ["analyze_overlap", "read_timeline"]
    assert profiling.read_timeline is merged_timeline.read
    assert profiling.analyze_overlap is overlap_analysis.analyze
