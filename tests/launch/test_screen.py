"""What `easyddl run` shows of ranks that write at the same time."""

import pytest

from easyddl.launch.output import screen
from easyddl.launch.output.lines import LONGEST, Lines

LINE = b"x" * 5 * LONGEST + b"\n"


@pytest.fixture
def shown(capfd):
    """A function that returns the output since its last call."""
    return lambda: capfd.readouterr().out


@pytest.mark.parametrize("prefix", [True, False])
def test_long_lines_of_several_ranks_are_whole(prefix, shown):
    on, streams = screen.Screen(3, prefix), [Lines() for _ in range(2)]
    data = 4 * LINE
    for begin in range(0, len(data), LONGEST):
        for rank, stream in enumerate(streams):
            on.write(rank, "out", stream.add(data[begin : begin + LONGEST]))
        on.write(2, "out", [b"short\n"])
    on.finish()
    lines, line = shown().splitlines(), LINE.decode().rstrip()
    begins = ["[0] ", "[1] ", "[2] "] if prefix else ["", "", ""]
    shorts = [f"{begins[2]}short"] * -(-len(data) // LONGEST)
    assert sorted(lines) == sorted(
        [*(f"{begin}{line}" for begin in begins[:2] for _ in range(4)), *shorts]
    )
    assert lines.index(shorts[0]) < 3  # no rank waits for more than the line of each other one


@pytest.mark.parametrize("limit", ["time", "bytes"])
def test_ranks_do_not_wait_for_a_line_without_end(limit, shown, monkeypatch):
    on = screen.Screen(2, True)
    on.write(0, "out", [LINE[:-1]])
    on.write(1, "out", [b"waits\n"])
    on.release_overdue()
    assert "waits" not in shown()
    monkeypatch.setattr(screen, "_LONGEST_HOLD" if limit == "time" else "_MOST_HELD", -1)
    on.release_overdue()
    on.write(1, "out", [b"goes on\n"])
    assert shown() == "\n[1] waits\n[1] goes on\n"


def test_a_question_does_not_hold_other_ranks(shown):
    on = screen.Screen(2, True)
    on.write(0, "out", [b"question? "])
    on.write(1, "out", [b"a line\n"])
    assert shown() == "[0] question? \n[1] a line\n"
