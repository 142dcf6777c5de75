"""What `easyddl run` takes for an error that ends a rank's program."""

import sys
import traceback

import pytest

from easyddl.launch.output import error_text
from easyddl.launch.supervise import verdict

MESSAGE = "a mistake\n  of several lines\n\nand a paragraph"


def printed(error):
    """What Python prints of an error that nobody catches."""
    return "".join(traceback.format_exception(type(error), error, error.__traceback__))


def an_error(cause=False):
    try:
        try:
            {}["missing"]
        except KeyError as key_error:
            raise ValueError(MESSAGE) from (key_error if cause else None)
    except ValueError as error:
        return error


def feed(errors, text):
    """Gives a text to an `ErrorText` by lines. Returns what it passes on, and the error."""
    passed_on, found = b"", None
    for line in text.splitlines(keepends=True):
        lines, error = errors.add(line.encode())
        passed_on += b"".join(lines)
        found = error or found
    return passed_on.decode(), found


def told(rank=3, what="failed: ValueError: a mistake"):
    return f"easyddl: rank {rank} on host h1 {what}\n"


@pytest.mark.parametrize("cause", [True, False])
def test_a_message_that_contains_a_traceback(cause):
    """As TensorFlow's of a generator that fails."""
    message = f"the generator failed:\n{printed(an_error())}"
    try:
        raise RuntimeError(message) from (TypeError("another") if cause else None)
    except RuntimeError as error:
        text = printed(error)
    lines = error_text.message_of({"text": text, "line": ""})
    assert lines == f"RuntimeError: {message}".splitlines()


@pytest.mark.parametrize("cause", [True, False])
@pytest.mark.parametrize("before", ["", "a line\n", "epoch 1/2: 30%"])
def test_an_error_that_easyddl_reports(before, cause):
    text = printed(an_error(cause))
    passed_on, error = feed(error_text.ErrorText(3), before + text + told())
    assert passed_on == before
    assert error == {"text": text, "line": told()}
    assert "\n".join(error_text.message_of(error)) == f"ValueError: {MESSAGE}"


def test_an_error_of_a_program_that_does_not_use_easyddl():
    errors = error_text.ErrorText(3)
    text = printed(an_error())
    assert feed(errors, "a line\n" + text) == ("a line\n", None)
    errors.expect_nothing_else()
    assert errors.error_at_end() == {"text": text, "line": ""}
    assert not errors.is_held


@pytest.mark.skipif(sys.version_info < (3, 11), reason="needs exception groups")
def test_an_exception_group():
    try:
        raise ExceptionGroup("a group", [ValueError("one"), TypeError("two")])  # noqa: F821
    except Exception as group:
        text = printed(group)
    line = told(what="failed: ExceptionGroup: a group (2 sub-exceptions)")
    _, error = feed(error_text.ErrorText(3), text + line)
    assert error["text"] == text
    assert error_text.message_of(error) == ["ExceptionGroup: a group (2 sub-exceptions)"]


@pytest.mark.parametrize(
    "text",
    [
        "  File \"train.py\", line 2\n    x = (\n        ^\nSyntaxError: '(' was never closed\n",
        "/my venv/bin/python: can't open file '/a/train.py': [Errno 2] No such file or directory\n",
    ],
)
def test_a_script_that_does_not_start(text):
    errors = error_text.ErrorText(0)
    assert feed(errors, text) == ("", None)
    assert errors.error_at_end()["text"] == text


def test_what_the_program_prints_of_an_error_that_it_catches_is_passed_on(monkeypatch):
    errors = error_text.ErrorText(3)
    text = printed(an_error()) + "the script goes on\n"
    assert feed(errors, text) == ("", None)
    assert errors.overdue() == []
    monkeypatch.setattr(error_text, "_LONGEST_HOLD", -1.0)
    assert b"".join(errors.overdue()).decode() == text
    assert errors.error_at_end() is None


def test_other_lines_are_passed_on_at_once():
    lines = "\n".join(
        [
            "Epoch 1/2",
            "    indented",
            "the word Traceback (most recent call last): within a line",
            "ValueError: a line of the script",
            told(rank=4).strip(),
            told(what="has started").strip(),
            "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(comm=0x84, 7)",
            ":",
            "",
        ]
    )
    assert feed(error_text.ErrorText(3), lines) == (lines, None)


def test_a_long_line_is_searched_in_a_time_in_proportion():
    """A search of the rest of the line after each of these words would take minutes."""
    line = "python" * 300_000
    for end in ("", ": can't open it\n"):
        assert feed(error_text.ErrorText(3), line + end) == (line + end, None)


@pytest.mark.parametrize("name", ["cli_3", "kvs_9572_0_4758489_vm-3"])
def test_what_mpich_prints_when_easyddl_ends_the_job_is_left_out(name):
    aborts = (
        "Abort(1) on node 3 (rank 3 in comm 0): application called MPI_Abort(MPI_COMM_WORLD, 1) - "
        f"process 3\n[{name}]: PMIU_write error; fd=19 buf=:cmd=abort exitcode=1 message=abort\n:\n"
        "system msg for write_line failure : Broken pipe\n"
    )
    exits = told(what="exited with status 1. Ending the job.")
    passed_on, error = feed(error_text.ErrorText(3), exits + aborts + "the end\n")
    assert passed_on == "the end\n"
    assert error == {"text": "", "line": exits}
    assert error_text.without_abort(aborts.splitlines()) == []


def failed_rank(number, text, failed_at, line=""):
    return verdict.Rank(
        number,
        {"host": "h1", "kernel": "h1"},
        link=None,
        status=1,
        lines=["the last line"],
        ended_at=10.0 - failed_at,
        error={"text": text, "line": line},
        failed_at=failed_at,
    )


def test_the_verdict_counts_the_ranks_with_the_same_error():
    same, other = printed(an_error()), printed(TypeError("another"))
    ranks = [failed_rank(0, other, 1.5), failed_rank(1, same, 2.0), failed_rank(2, same, 1.0)]
    ranks += [failed_rank(3, same, 3.0)]
    first = verdict.first_failure(ranks)
    assert first.number == 2
    assert verdict.text_of(first, ranks).splitlines() == [
        "rank 2 on host h1 failed first, with exit status 1. The error, also of ranks 1, 3:",
        "    ValueError: a mistake",
        "      of several lines",
        "",
        "    and a paragraph",
    ]
    many = [failed_rank(number, same, float(number)) for number in range(20)]
    assert "The error, also of 19 other ranks:" in verdict.text_of(many[0], many)


def test_the_first_rank_of_those_with_the_same_error_is_named():
    text = printed(an_error())
    ranks = [failed_rank(number, text, 3.0 - number) for number in range(3)]
    ranks[2].after_kill, ranks[2].status = True, 143  # the launcher has killed it
    told = verdict.text_of(verdict.first_failure(ranks), ranks)
    assert told.startswith(
        "rank 2 on host h1 failed first, with exit status 1. The error, also of ranks 0, 1:\n"
    )


def test_the_verdict_counts_the_ranks_that_exit_in_the_same_way():
    ranks = [
        failed_rank(number, "", 1.0, told(number, "exited with status 1. Ending the job."))
        for number in range(3)
    ]
    assert verdict.text_of(ranks[1], ranks).splitlines() == [
        "rank 1 on host h1 failed first, with exit status 1. Ranks 0, 2 failed in the same way. "
        "Its last lines:",
        "    the last line",
    ]
