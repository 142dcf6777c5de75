import argparse
import sys

import numpy as np
import pytest

from easyddl import cli
from easyddl.cli import _output_files
from easyddl.cli import bench as command
from easyddl.cli.bench import bench_report, timing


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4", 4),
        ("1k", 1000),
        ("1Ki", 1024),
        ("64KiB", 65_536),
        ("4M", 4_000_000),
        ("4MB", 4_000_000),
        ("4mi", 4 << 20),
        ("1G", 10**9),
        ("8GiB", 8 << 30),
        ("4096B", 4096),
    ],
)
def test_sizes(text, size):
    assert command.parse_size(text) == size


@pytest.mark.parametrize(
    ("texts", "problem"),
    [
        (["", "x", "-4", "1.5k", "4T", "k", "1ik", "i", "4i", "0x10"], "must be a number of bytes"),
        (["0", "2", "1001", "0M"], "must be a multiple of 4 bytes"),
    ],
)
def test_what_is_no_size(texts, problem):
    for text in texts:
        with pytest.raises(argparse.ArgumentTypeError, match=f"{problem}.*Received: '{text}'"):
            command.parse_size(text)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--sizes", "4", "7"], "argument --sizes: must be a multiple of 4"),
        (["--rounds", "0"], "argument --rounds: must be a positive integer"),
        (["--rounds", "many"], "argument --rounds: must be a positive integer"),
        (["--algorithms", "nccl"], "argument --algorithms: invalid choice: 'nccl'"),
        (["--plot", "x.pdf"], "argument --plot: must end in .png"),
    ],
)
def test_bad_options(arguments, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["bench", *arguments])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def test_files_that_cannot_be_written(tmp_path):
    def problem(**files):
        return _output_files.problem(argparse.Namespace(**{"json": None, "plot": None, **files}))

    assert problem() is None
    assert problem(json="-") is None
    assert problem(json=str(tmp_path / "x.json")) is None
    assert "argument --json: there is no directory" in problem(json=str(tmp_path / "no" / "x"))
    assert f"argument --json: {str(tmp_path)!r} is a directory" in problem(json=str(tmp_path))
    assert "argument --json: '/proc/x' cannot be written: " in problem(json="/proc/x")
    assert "argument --plot: there is no directory" in problem(plot=str(tmp_path / "no" / "x.png"))


def test_a_picture_without_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    problem = _output_files.problem(argparse.Namespace(json=None, plot="x.png"))
    assert "argument --plot: needs matplotlib" in problem
    assert "easyddl[plot]" in problem


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (4, "4 bytes"),
        (1000, "1 kB"),
        (1024, "1 KiB"),
        (1028, "1028 bytes"),
        (65_536, "64 KiB"),
        (100_000_000, "100 MB"),
        (1 << 30, "1 GiB"),
        (128_000_000, "128 MB"),
    ],
)
def test_bytes_in_words(size, text):
    assert bench_report.format_bytes(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (3.2e-9, "3.20 ns"),
        (1.234e-6, "1.23 us"),
        (9.996e-6, "10.0 us"),
        (99.96e-6, "100 us"),
        (999.6e-6, "1.00 ms"),
        (0.0123, "12.3 ms"),
        (2.5, "2.50 s"),
        (12_345, "12345 s"),
    ],
)
def test_seconds_in_words(seconds, text):
    assert bench_report.format_seconds(seconds) == text


def result(size, wire=None):
    medians = {"easyddl": 2e-6 * size, "mpi": 5e-6 * size}
    bounds = {"copy": 1e-6 * size, "wire": wire}
    measured = {name: time for name, time in {**medians, **bounds}.items() if time is not None}
    return {
        "bytes": size,
        "seconds": medians,
        "bounds": bounds,
        "least": {name: time / 2 for name, time in measured.items()},
        "worst": {name: time * 10 for name, time in measured.items()},
    }


def words(line):
    return " ".join(line.split())


def test_the_table():
    table = bench_report.Table(["easyddl", "mpi"])
    header, ones, many = table.header(), table.rows(result(4)), table.rows(result(1024, 0.001024))
    assert header.endswith("of wire")
    assert [words(line) for line in ones.split("\n")] == [
        "4 bytes 8.00 us 20.0 us 4.00 us - 2.50 50% -",
        "least 4.00 us 10.0 us 2.00 us -",
        "worst 80.0 us 200 us 40.0 us -",
    ]
    assert [words(line) for line in many.split("\n")] == [
        "1 KiB 2.05 ms 5.12 ms 1.02 ms 1.02 ms 2.50 50% 50%",
        "least 1.02 ms 2.56 ms 512 us 512 us",
        "worst 20.5 ms 51.2 ms 10.2 ms 10.2 ms",
    ]
    # Each column stays under its name.
    [median, least, worst] = ones.split("\n")
    assert len(header) == len(median)
    assert least.index("4.00 us") == median.index("8.00 us")
    assert worst.rindex("-") == median.index("-")


def test_the_table_without_easyddl_has_no_ratios():
    table = bench_report.Table(["mpi"])
    assert "easyddl" not in table.header()
    row = {**result(4), "seconds": {"mpi": 1.0}}
    assert words(table.rows(row).split("\n")[0]) == "4 bytes 1.00 s 4.00 us -"


@pytest.mark.parametrize("sizes", [[4], [4, 1024, 100_000_000], [1024, 4]])
@pytest.mark.parametrize("wire", [None, 0.001])
def test_a_picture(sizes, wire, tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    everything = {
        **{"ranks": 2, "hosts": 2, "cores": 2, "busy": True, "mpi": "an MPI"},
        "algorithms": ["easyddl", "mpi"],
        "bounds": ["copy"] if wire is None else ["copy", "wire"],
        "results": [result(size, wire) for size in sizes],
    }
    bench_report.plot(everything, str(path))
    assert path.read_bytes().startswith(b"\x89PNG")
    title = bench_report.title(everything)
    assert "2 ranks" in title and "(busy)" in title


@pytest.mark.parametrize("count", [1, 4098, 4099, 4100, 10_000])
def test_a_wrong_sum_is_found(count, monkeypatch):
    monkeypatch.setattr(timing, "_of_all_ranks", lambda value: [1, value])
    period = np.arange(4099, dtype=np.float32)
    right = np.resize(period, count)
    timing._check("ring", 4 * count, right, period)
    for index in {0, count // 2, count - 1}:
        wrong = right.copy()
        wrong[index] = np.nan
        with pytest.raises(RuntimeError, match=r"bytes by ring is wrong on rank\(s\) 1"):
            timing._check("ring", 4 * count, wrong, period)


def test_each_algorithm_and_bound_has_a_line():
    assert [*bench_report.LOOKS] == [*command.ALGORITHMS, *command.WIRE_DTYPES, *command.BOUNDS]
