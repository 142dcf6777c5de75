import json
import sys

import pytest

from easyddl import cli
from easyddl.cli.scaling import scaling_job, scaling_report, scaling_verdict
from easyddl.cli.scaling.scaling_job import Measurement
from easyddl.profiling import measurement_request
from easyddl.profiling.step_times import Step, StepRecorder, are_enough, combine


def recorded(warmup, *epochs, batches=1):
    """Records epochs. Each is a list of the size and the end of each step; `None`: no batch."""
    recorder, samples, number = StepRecorder(warmup, 1000, 50), 1000, 50
    for epoch in epochs:
        for place, (size, end) in enumerate(epoch, 1):
            samples, number = samples + (size or 0), number + batches
            totals = end / 4, samples, number
            recorder.end_step(place * batches, end, *totals, counts=size is not None)
    return recorder.steps


@pytest.mark.parametrize(
    ("steps", "warmup", "epochs"),
    [
        # A step lasts from the end of the one before it; the time between epochs does not count.
        ([(0, 2, 1.0, 8)], 1, [[(8, 5.0), (8, 6.0)]]),
        ([(0, 2, 1.0, 8), (1, 2, 3.0, 8)], 1, [[(8, 1.0), (8, 2.0)], [(8, 100.0), (8, 103.0)]]),
        # The warm-up counts batches over epochs: here the first five.
        ([(1, 3, 1.0, 8)], 5, [[(8, 1.0), (8, 2.0), (8, 3.0)], [(8, 4.0), (8, 5.0), (8, 6.0)]]),
        # An epoch of one step has no step that counts.
        ([], 1, [[(8, 1.0)], [(8, 2.0)]]),
        # The first step with a smaller batch does not count, but for steps that all differ.
        ([(0, 2, 1.0, 8), (1, 2, 1.0, 8), (1, 3, 1.0, 5)], 1,
         [[(8, 1.0), (8, 2.0), (5, 3.0)], [(8, 11.0), (8, 12.0), (5, 13.0)]]),
        ([(0, n, 1.0, 9 + n) for n in (4, 5)], 1, [[(9 + n, float(n)) for n in range(1, 6)]]),
        # A step in which a rank has no batch does not count.
        ([(0, 2, 1.0, 8)], 1, [[(8, 1.0), (8, 2.0), (None, 3.0)]]),
    ],
)  # fmt: skip
def test_the_steps_that_count(steps, warmup, epochs):
    found = recorded(warmup, *epochs)
    assert [(*step[:3], step.samples) for step in found] == steps
    assert all(step.waited == step.seconds / 4 for step in found)


def test_several_batches_in_a_step():
    steps = recorded(5, [(80, 1.0), (80, 2.0), (80, 4.0)], batches=10)
    assert [(step.samples, step.batches) for step in steps] == [(80, 10), (80, 10)]
    assert combine([steps], 10)["step_seconds"] == [0.1, 0.2]


def test_no_steps():
    assert combine([[], []], 3) == {
        **{"ranks": 2, "steps": 0, "samples": 0, "seconds": 0.0, "step_seconds": []},
        **{"exposed": None, "lag": None},
    }


def steps(*seconds_and_waits, first=0, samples=8):
    return [
        Step(0, number, *each, samples, 1) for number, each in enumerate(seconds_and_waits, first)
    ]


def test_steps_are_enough_by_their_batches_and_their_number():
    assert are_enough(steps((1, 0), (1, 0), (1, 0)), 3)
    assert not are_enough(steps((1, 0), (1, 0), (1, 0)), 4)
    assert not are_enough([Step(0, 1, 1.0, 0.0, 800, 100)], 30)


def test_the_ranks_are_combined():
    # In the first step rank 1 is the slower one, and in the second rank 0.
    ranks = [
        steps((10.0, 4.0), (10.0, 1.0), (10.0, 2.0)),
        steps((10.0, 1.0), (10.0, 2.0), (10.0, 2.0), samples=4),
    ]
    found = combine(ranks, 30)
    assert (found["ranks"], found["steps"], found["samples"]) == (2, 3, 36)
    assert (found["seconds"], found["step_seconds"]) == (30.0, [10.0, 10.0, 10.0])
    assert found["exposed"] == pytest.approx((2.5 + 1.5 + 2) / 30)
    assert found["lag"] == pytest.approx((2.5 - 1 + 1.5 - 1 + 0) / 30)


def test_only_the_steps_of_all_ranks_count_and_no_more_than_asked_for():
    ranks = [steps(*[(1.0, 0.0)] * 6), steps(*[(3.0, 0.0)] * 6, first=1)]
    found = combine(ranks, 4)
    assert (found["steps"], found["samples"], found["seconds"]) == (4, 64, 12.0)
    assert found["step_seconds"] == [2.0] * 4
    assert combine(ranks, 30)["steps"] == 5


def test_a_wait_that_is_not_measured():
    found = combine([steps((1.0, None)), steps((1.0, 0.5))], 3)
    assert (found["exposed"], found["lag"]) == (None, None)


def test_the_request_and_the_answer(monkeypatch):
    assert measurement_request.requested() is None
    monkeypatch.setenv(*measurement_request.assignment(30, 5).split("="))
    assert measurement_request.requested() == (30, 5)
    first, last = {"steps": 1}, {"steps": 2}
    output = f"a\nb{measurement_request.answer(first)}c{measurement_request.answer(last)}d\n"
    assert measurement_request.split(output) == (last, ["a", "b", "c", "d"])
    assert measurement_request.split("a\n") == (None, ["a"])


def measured(ranks, step, **changes):
    """A `Measurement` of 10 steps, on one host with 64 cores, with batches of 32 samples."""
    batch = changes.pop("batch", 32)
    values = {
        "steps": 10,
        "samples": 10 * ranks * batch,
        "seconds": 10 * step,
        "step_seconds": [step] * 10,
        "exposed": 0.0,
        "lag": 0.0,
        "reading_seconds": 0.0,
        "gradient_bytes": 80_000_000,
        "wire_dtype": "float32",
        "threads": 64 // ranks,
        "hosts": [{"host": "h1", "ranks": ranks, "cores": 64, "gpus": 0}],
    }
    return Measurement(ranks, **{**values, **changes})


def words(line):
    return " ".join(line.split())


def test_the_table():
    rows = [
        (measured(1, 0.004, reading_seconds=0.001), "1 8000 1.00 100 % 4.00 0 % 0 % 25 %"),
        (measured(4, 0.016, exposed=0.25, lag=0.05, reading_seconds=None),
         "4 8000 1.00 25 % 16.0 25 % 5 % -"),
        (measured(4, 0.016, exposed=None, lag=None), "4 8000 1.00 25 % 16.0 - - 0 %"),
        # The step is the median.
        (measured(1, 0.004, step_seconds=[1.0, 0.002, 0]), "1 8000 1.00 100 % 2.00 0 % 0 % 0 %"),
    ]  # fmt: skip
    header = scaling_report.header()
    assert words(header) == "ranks samples/s speed-up efficiency step (ms) exposed lag input"
    for measurement, expected in rows:
        row = scaling_report.row(measurement, rows[0][0])
        assert (words(row), len(row)) == (expected, len(header))


@pytest.mark.parametrize(
    ("steps", "told"),
    [(11, ["10 on 1 rank, 4 on 2 ranks, 3 on 4 ranks"]), (4, ["3 on 4 ranks"]), (3, [])],
)
def test_too_few_steps_are_told(steps, told):
    measurements = [measured(1, 1.0), measured(2, 1.0, steps=4), measured(4, 1.0, steps=3)]
    expected = [f"The script ended before {steps} steps were measured: {each}." for each in told]
    assert list(scaling_report.too_few(measurements, steps)) == expected


def shared(ranks, cores, gpus=0, host="h1"):
    return {"host": host, "ranks": ranks, "cores": cores, "gpus": gpus}


H1, H2 = shared(4, 8), shared(4, 8, host="h2")


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (measured(8, 1.0), "Scales well: 8 ranks train 8.0 times as fast as 1 rank."),
        (measured(8, 1.1, hosts=[shared(8, 2)]), "Scales well: 8 ranks train 7.3 times"),
        (
            measured(8, 2.0, hosts=[shared(8, 2)], exposed=0.4),
            "8 ranks share 2 cores: more ranks than cores do not train faster.",
        ),
        (measured(2, 2.0, hosts=[shared(2, 1)]), "2 ranks share 1 core: more ranks than cores"),
        (
            measured(8, 2.0, hosts=[H1, shared(4, 2, host="h2")]),
            "4 ranks share 2 cores on host h2: more ranks than cores do not train faster.",
        ),
        (
            measured(8, 2.0, hosts=[shared(8, 64, gpus=4)], exposed=None, lag=None),
            "8 ranks share 4 GPUs: more ranks than GPUs do not train faster.",
        ),
        (
            measured(8, 2.0, exposed=0.5, lag=0.1),
            "40 % of a step is communication that no computation hides: use larger batches.",
        ),
        (
            measured(8, 2.0, exposed=0.5, lag=0.1, hosts=[H1, H2]),
            "40 % of a step is communication that no computation hides: use larger batches or a "
            "faster network. `easyddl plan --topology FILE --explain --size 80000000B` computes ",
        ),
        (
            measured(8, 2.0, exposed=0.5, lag=0.4),
            "The ranks wait for the slowest one for 40 % of a step: ",
        ),
        (
            measured(8, 2.0, exposed=0.1, lag=0.1, reading_seconds=1.8),
            "The input pipeline takes 90 % of a step: ",
        ),
        (
            measured(8, 2.0, reading_seconds=3.0),
            "The input pipeline takes 100 % of a step: ",
        ),
        (
            measured(8, 2.0, exposed=0.1),
            "A rank has 8 cores instead of 64, and computes 1.8 times as long as with 1 rank: ",
        ),
        (
            measured(8, 2.0, exposed=0.1, threads=64),
            "A rank computes 1.8 times as long as with 1 rank, and its share of the cores does ",
        ),
        (
            measured(8, 10.0),
            "A rank computes 10.0 times as long as with 1 rank, and its share of the cores does ",
        ),
        (
            measured(8, 0.5, batch=4),
            "A rank computes 4.0 times as long for a sample as with 1 rank, and its batches have "
            "4 samples instead of 32: ",
        ),
        (
            measured(8, 2.0, exposed=None, lag=None, hosts=[shared(8, 64, gpus=8)]),
            "A step takes 2.0 times as long as with 1 rank. On GPUs the wait for gradients is not ",
        ),
    ],
)
def test_the_sentence(last, expected):
    first = measured(1, 1.0, reading_seconds=0.01)
    middle = measured(2, 1.0, exposed=0.9)  # the largest number of ranks decides
    found = scaling_verdict.sentence([first, middle, last] if last.ranks > 2 else [first, last])
    assert found.startswith(expected) and found.endswith(".")


def test_the_sentence_on_one_number_of_ranks():
    expected = "One number of ranks shows no scaling: pass several, as in `-np 1 2 4`."
    assert scaling_verdict.sentence([measured(8, 2.0, exposed=0.9)]) == expected


def test_sixteen_bits_between_hosts_are_named_once():
    first, slow = measured(1, 1.0), {"exposed": 0.5, "lag": 0.1, "hosts": [H1, H2]}
    found = scaling_verdict.sentence([first, measured(8, 2.0, **slow)])
    assert found.endswith(
        '`DDLCallback(wire_dtype="bfloat16")` halves the bytes of float32 gradients between hosts, '
        "and shortens a step by up to 20 %."
    )
    found = scaling_verdict.sentence([first, measured(8, 2.0, **slow, wire_dtype="bfloat16")])
    assert found.endswith("by number of hosts.")


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        # Reading takes 0.9 s more than alone, but the step only 0.4 s, of which 0.3 s are a wait.
        (
            measured(1, 1.0, reading_seconds=0.05),
            measured(8, 1.4, exposed=0.3 / 1.4, reading_seconds=0.95),
            [0.3, 0.0, 0.1, 0.0],
        ),
        # Smaller batches are expected to take less time.
        (
            measured(2, 1.0, exposed=0.2, lag=0.1, reading_seconds=0.4),
            measured(8, 1.0, exposed=0.6, lag=0.2, reading_seconds=0.1, batch=8),
            [0.375, 0.175, 0.0, 0.2],
        ),
    ],
)
def test_the_losses(first, last, expected):
    found = scaling_verdict.losses(first, last)
    assert list(found) == ["communication", "lag", "reading", "computing"]
    assert list(found.values()) == pytest.approx(expected, abs=1e-9)


def test_communication_that_does_not_shrink_with_the_batches():
    first = measured(2, 1.1, exposed=1.0 / 1.1)
    last = measured(8, 1.015, exposed=0.99 / 1.015, batch=8)
    found = scaling_verdict.sentence([first, last])
    assert found == "98 % of a step is communication that no computation hides: use larger batches."


def test_the_json_file():
    found = scaling_report.as_json([measured(1, 1.0), measured(2, 1.0)], ["python", "train.py"])
    assert found["program"] == ["python", "train.py"]
    assert found["limit"] == "Scales well: 2 ranks train 2.0 times as fast as 1 rank."
    one, two = found["measurements"]
    assert (one["samples_per_second"], two["speed_up"], two["efficiency"]) == (32.0, 2.0, 1.0)
    assert two["hosts"] == [shared(2, 64)] and two["median_step_seconds"] == 1.0
    assert json.loads(json.dumps(found)) == found


@pytest.mark.parametrize("numbers", [[1, 2, 8], [2]])
def test_a_picture(numbers, tmp_path):
    pytest.importorskip("matplotlib")
    measurements = [measured(number, 1.0) for number in numbers]
    program = ["python", "a$b$.py"] * 20
    scaling_report.plot(measurements, program, str(tmp_path / "picture.png"))
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def started(monkeypatch, *arguments):
    """The command lines of the jobs that `easyddl scaling` starts."""
    lines = []

    def measure(line, program):
        lines.append(line)
        return measured(int(line[line.index("-np") + 1]), 1.0)

    monkeypatch.setattr(scaling_job, "measure", measure)
    assert cli.main(["scaling", *arguments]) == 0
    return lines


def test_the_jobs(monkeypatch, capsys):
    program = ["python", "train.py", "--its", "--steps", "9"]
    asked = ["-np", "4", "1", "2", "2", "--steps", "20", "--warmup", "3"]
    lines = started(monkeypatch, *asked, "--", *program)
    assert [line[line.index("-np") + 1] for line in lines] == ["1", "2", "4"]
    for line in lines:
        assert line[:4] == [sys.executable, "-m", "easyddl", "run"]
        assert line[line.index("--") + 1 :] == program
        assert line[line.index("--env") + 1] == "_EASYDDL_SCALING=20,3"
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == (
        "20 steps, after 3 for the warm-up, on 1, 2, 4 ranks: python train.py --its --steps 9"
    )
    assert printed[1] == scaling_report.header() and printed[-1].startswith("Scales well: 4 ranks")
    assert [line.split()[0] for line in printed[2:5]] == ["1", "2", "4"]
    assert printed[5:7] == ["", *scaling_report.too_few([measured(n, 1.0) for n in (1, 2, 4)], 20)]


def test_the_hosts_are_passed_on(monkeypatch, tmp_path, capsys):
    lines = started(monkeypatch, "-H", "h1:2,h2:4", "python", "train.py")
    # The powers of two, and the number of slots.
    assert [line[line.index("-np") + 1] for line in lines] == ["1", "2", "4", "6"]
    assert all(line[line.index("--hosts") + 1] == "h1:2,h2:4" for line in lines)
    (tmp_path / "hosts").write_text("h1:2\n")
    lines = started(monkeypatch, "--hostfile", str(tmp_path / "hosts"), "python", "train.py")
    assert all(line[line.index("--hostfile") + 1] == str(tmp_path / "hosts") for line in lines)
    assert len(lines) == 2


def test_json_on_standard_output_comes_alone(monkeypatch, capsys):
    started(monkeypatch, "--json", "-", "-np", "1", "--", "python", "train.py")
    assert len(json.loads(capsys.readouterr().out)["measurements"]) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "PROGRAM is missing, as in `easyddl scaling"),
        (["-np", "1", "2", "--"], "PROGRAM is missing"),
        (["-np", "1", "2", "python", "x.py"], "argument -np/-n: must be numbers of ranks, with --"),
        (["-np", "0", "--", "x"], "argument -np/-n: must be numbers of ranks"),
        (["--steps", "2", "x"], "argument --steps: must be at least 3. Received: '2'"),
        (["--steps", "many", "x"], "argument --steps: must be a positive integer"),
        (["--warmup", "0", "x"], "argument --warmup: must be a positive integer"),
        (["--plot", "x.pdf", "x"], "argument --plot: must end in .png"),
        (["--json", "/no/such/x", "x"], "argument --json: there is no directory '/no/such'"),
        (["-H", "h1:2", "-np", "1", "4", "--", "x"], "`-np 4` asks for more ranks than there are"),
        (["-H", "h1,h2", "x"], "The number of ranks is not known: -H names hosts without slots"),
        (["-H", "h1:2", "--hostfile", "hosts", "x"], "not allowed with argument"),
    ],
)
def test_bad_options(arguments, expected, capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["scaling", *arguments])
    assert ended.value.code == 2
    assert expected in capsys.readouterr().err


def outcome(monkeypatch, status, output, steps=3):
    monkeypatch.setattr(scaling_job, "_run", lambda line: (status, output))
    return scaling_job.measure(["run", "-np", "2"], ["python", "my train.py"])


def answered(steps):
    combined = combine([[Step(0, n, 1.0, 0.0, 8, 1) for n in range(steps)]], 30)
    return measurement_request.answer(
        {
            **combined,
            "reading_seconds": None,
            "gradient_bytes": 8,
            "wire_dtype": "float32",
            "threads": 1,
            "hosts": [shared(1, 1)],
        }
    )


def test_the_answer_of_a_job(monkeypatch):
    found = outcome(monkeypatch, 0, f"epoch 1{answered(4)}done\n")
    assert (found.steps, found.samples, found.rate, found.input) == (4, 32, 8.0, None)


@pytest.mark.parametrize(
    ("status", "output", "expected"),
    [
        (
            7,
            "".join(f"line {number}\n" for number in range(30)) + answered(4),
            "`python 'my train.py'` failed on 2 ranks with exit status 7. Its last lines:\n"
            "    line 11\n",
        ),
        (0, "done\n", "ended on 2 ranks without training: it never called model.fit() with a ddl."),
        (0, answered(2), "ended on 2 ranks after too few steps: 2 could be measured, and 3 are"),
    ],
)
def test_a_job_that_cannot_be_measured(monkeypatch, capsys, status, output, expected):
    with pytest.raises(scaling_job.JobFailed) as failed:
        outcome(monkeypatch, status, output)
    assert expected in str(failed.value)
    assert failed.value.status == (status or 1)
    monkeypatch.setattr(scaling_job, "_run", lambda line: (status, output))
    assert cli.main(["scaling", "-np", "2", "--", "python", "my train.py"]) == (status or 1)
    assert expected in capsys.readouterr().err
