import io

import pytest

from easyddl.launch.output import relay


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def every_version(monkeypatch):
    """Shows each version of an incomplete line, however soon it follows."""
    monkeypatch.setattr(relay, "REFRESH", 0.0)


def shown(text):
    """What a terminal shows of a text."""
    lines = []
    for line in text.split("\n"):
        cells = []
        for part in line.split("\r"):
            cells[: len(part)] = part
        lines.append("".join(cells).rstrip())
    return lines


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["one\ntw", "o\r\n\n"], ["one", "two", ""]),
        (["10%\r20%\r", "done\n"], ["done"]),
        (["spin |\b", "/\b-\b\n"], ["spin -"]),
        (["y", "\b" * 5, "z\b\b"], ["z"]),
        (["x" * 100_000, "y"], ["x" * 100_000, "y"]),  # a line without end is cut
        # A copy of the line at each piece, or a search at each byte, would take hours.
        (["x" * 60_000 + "\b/" * 1_000_000], ["x" * 59_999 + "/"]),
        (["y", *["\r" * (1 << 16)] * 100, "z"], ["z"]),
    ],
)
def test_a_line_is_what_a_terminal_shows(pieces, expected):
    out = io.StringIO()
    of = relay.Relay(1, (out, None))
    for piece in pieces:
        of.write(0, 0, piece)
    of.finish()
    assert out.getvalue() == "".join(f"{line}\n" for line in expected)


def test_a_file_gets_complete_lines_alone():
    out, err = io.StringIO(), io.StringIO()
    of = relay.Relay(2, (out, err))
    of.write(1, 0, "1/3")
    of.refresh()
    of.write(1, 0, "\r2/3")
    of.write(0, 1, "warning\n")
    of.write(1, 0, "\r3/3\n")
    of.write(0, 0, "unfinished")
    of.finish()
    assert out.getvalue() == "[1] 3/3\n[0] unfinished\n"
    assert err.getvalue() == "[0] warning\n"


def test_a_terminal_shows_the_bar_of_rank_0_below_the_lines_of_others(every_version):
    out = Terminal()
    of = relay.Relay(2, (out, Terminal()))
    of.write(0, 0, "1/3 a long line")
    of.refresh()
    assert shown(out.getvalue()) == ["[0] 1/3 a long line"]
    of.write(1, 0, "hello\n")
    of.refresh()
    assert shown(out.getvalue()) == ["[1] hello", "[0] 1/3 a long line"]
    of.write(0, 0, "\b" * 15 + "\r3/3")
    of.refresh()
    assert shown(out.getvalue()) == ["[1] hello", "[0] 3/3"]
    of.write(0, 0, " done\nnext\n")
    of.finish()
    assert shown(out.getvalue()) == ["[1] hello", "[0] 3/3 done", "[0] next", ""]


def test_two_jobs_write_to_one_terminal(every_version):
    out = Terminal()
    one, other = (relay.Relay(1, (out, Terminal())) for _ in range(2))
    one.write(0, 0, "one: a long line 1/3")
    one.refresh()
    other.write(0, 0, "other: done\n")
    assert shown(out.getvalue()) == ["other: done", ""]
    one.write(0, 0, "\rone: 2/3")
    one.refresh()
    other.write(0, 0, "other: 1/2")
    other.refresh()
    assert shown(out.getvalue()) == ["other: done", "other: 1/2"]
    one.finish()
    other.finish()
    assert shown(out.getvalue()) == ["other: done", "one: 2/3", "other: 1/2", ""]


def test_many_versions_of_a_line_are_few_writes():
    out = Terminal()
    of = relay.Relay(1, (out, Terminal()))
    for step in range(10_000):
        of.write(0, 0, f"\r{step}")
        of.refresh()
    of.finish()
    assert shown(out.getvalue()) == ["9999", ""]
    assert out.getvalue().count("\r") < 1000


def test_start_up_lines_come_from_rank_0_alone():
    err = io.StringIO()
    of = relay.Relay(2, (io.StringIO(), err))
    line = "I0000 00:00:1795403582.120688   14431 port.cc:153] oneDNN custom operations are on."
    for rank in range(2):
        of.write(rank, 1, f"{line}\nown\n")
        of.write(rank, 1, f"{line}\n")  # TensorFlow prints it for each of its libraries
    assert err.getvalue().splitlines() == [f"[0] {line}", "[0] own", "[1] own"]


def test_an_encoding_without_the_character():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    of = relay.Relay(1, (out, None))
    of.write(0, 0, "a ━ b\n")
    of.write(0, 1, "no standard error\n")
    of.finish()
    assert raw.getvalue() == b"a ? b\n"
