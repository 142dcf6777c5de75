"""`easyddl bench` measures everything it promises, and ends well where it cannot.

No time is asserted: on a shared host it says nothing.
"""

import importlib.util
import json
import time

import mpi
import pytest

pytestmark = pytest.mark.mpirun

# One number; a prime number of them; and more than one chunk, on one host and on several.
SIZES = [4, 4 * 10_007, 9_000_004]
HAS_TORCH = importlib.util.find_spec("torch") is not None


def bench(ranks, *arguments, env=None, **options):
    env = {**mpi.ANY_BACKEND, **(env or {})}
    line = ("-m", "easyddl", "bench", *arguments)
    return mpi.run(ranks, *line, env=env, timeout=120, **options)


def assert_complete(report, rounds, algorithms, hosts):
    assert report["algorithms"] == algorithms
    assert report["hosts"] == hosts and report["cores"] > 0 and report["mpi"]
    assert report["bounds"] == (["copy"] if hosts == 1 else ["copy", "wire"])
    assert [result["bytes"] for result in report["results"]] == SIZES
    for result in report["results"]:
        assert list(result["seconds"]) == algorithms
        assert set(result["rounds"]) == set(result["calls"]) >= {*algorithms, "copy"}
        assert (result["bounds"]["wire"] is None) is (hosts == 1)
        numbers = [*result["seconds"].values(), *result["calls"].values()]
        numbers += [bound for bound in result["bounds"].values() if bound is not None]
        for times in result["rounds"].values():
            assert len(times) == rounds
            numbers += times
        assert list(result["least"]) == list(result["worst"]) == [*algorithms, *report["bounds"]]
        for name in (*algorithms, "copy"):
            times = result["rounds"][name]
            median = {**result["seconds"], **result["bounds"]}[name]
            assert result["least"][name] == min(times) <= median
            assert result["worst"][name] == max(times) >= median
        assert all(number > 0 for number in numbers), result


@pytest.mark.parametrize(("ranks", "hosts"), [(1, ""), (3, ""), (4, "a,b,a,a")])
def test_everything_is_measured(ranks, hosts, tmp_path):
    path, picture = tmp_path / "report.json", tmp_path / "picture.png"
    draws = ["--plot", picture] if importlib.util.find_spec("matplotlib") else []
    done = bench(
        ranks,
        *("--rounds", 2, "--json", path, *draws, "--sizes", *SIZES),
        env={"EASYDDL_HOSTS": hosts},
        shown=["torch", "matplotlib"],
        ranks_by_mpirun=ranks > 1,
    )
    assert done.returncode == 0, done.stdout
    report = json.loads(path.read_text())
    assert report["ranks"] == ranks and report["busy"] is False
    assert not draws or picture.read_bytes().startswith(b"\x89PNG")
    algorithms = ["easyddl", "mpi", "ring", *(["gloo"] if HAS_TORCH else [])]
    assert_complete(report, 2, algorithms, len(set(hosts.split(","))))
    if not HAS_TORCH:
        assert report["skipped"] == {"gloo": "torch is not installed"}
        assert done.stdout.count("gloo is left out: torch is not installed\n") == 1
    # The table, once, and no progress bar in a file.
    for text in ("MPI_Allreduce", "copy bound", " 4 bytes", "40028 bytes", "9000004 bytes"):
        assert done.stdout.count(text) == 1, done.stdout
    for text in ("  least  ", "  worst  "):
        assert done.stdout.count(text) == len(SIZES), done.stdout
    assert "round/s" not in done.stdout


@pytest.mark.gate
def test_only_what_is_asked_for_and_json_to_standard_output():
    done = bench(
        2, "--busy", "--json", "-", "--algorithms", "ring", "easyddl", "--sizes", "1Ki",
        "--rounds", 1,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    start, end = done.stdout.index("{\n"), done.stdout.rindex("}\n")
    report = json.loads(done.stdout[start : end + 1])
    assert report["algorithms"] == ["ring", "easyddl"] and report["busy"] is True
    assert set(report["results"][0]["rounds"]) == {"ring", "easyddl", "copy"}
    assert "of copy" not in done.stdout


@pytest.mark.parametrize("watched", [True, False])
def test_a_person_at_the_launchers_terminal_sees_a_bar(watched):
    """Its ranks get pipes, which lead to that terminal; or from there to somewhere else."""
    arguments = ["-m", "easyddl", "bench", "--sizes", "4", "--rounds", "1"]
    seen = mpi.shown(2, *arguments, watched=watched)
    assert "4 bytes" in seen
    assert ("round/s" in seen) is watched, seen


def test_bad_options_end_all_ranks():
    start = time.monotonic()
    done = bench(2, "--sizes", "4000G")
    assert done.returncode == 2, done.stdout
    expected = "error: argument --sizes: 4000000000000 bytes need 3 arrays"
    assert done.stdout.count(expected) == 2, done.stdout
    assert "Traceback" not in done.stdout
    assert time.monotonic() - start < 60


@pytest.mark.parametrize("where", ["PMI_RANK,OMPI_COMM_WORLD_RANK", "PATH"])
def test_a_torch_that_fails_on_some_ranks_or_all_is_left_out(where, tmp_path):
    """Where it fails on one rank alone, the others must not wait for that one."""
    package = tmp_path / "torch"
    package.mkdir()
    package.joinpath("__init__.py").write_text(
        "import os\n"
        f"if any(os.environ.get(name, '0') != '0' for name in {where!r}.split(',')):\n"
        "    raise ImportError('a broken torch')\n"
    )
    package.joinpath("distributed.py").write_text(
        "def is_available():\n    return True\n\n\ndef is_gloo_available():\n    return True\n"
    )
    env = {"PYTHONPATH": path_with(tmp_path)}
    done = bench(2, "--sizes", 4, "--rounds", 1, env=env, shown=["torch"])
    assert done.returncode == 0, done.stdout
    rank = 0 if where == "PATH" else 1
    reason = f"it cannot be started on rank {rank}: ImportError: a broken torch"
    assert done.stdout.count(f"gloo is left out: {reason}\n") == 1, done.stdout
    assert "4 bytes" in done.stdout


def path_with(folder):
    """PYTHONPATH with a folder before all others."""
    return f"{folder}:{mpi.environment()['PYTHONPATH']}"
