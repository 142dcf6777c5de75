"""What `easyddl run` shows of ranks that write at the same time."""

import os
import sys
from unittest import mock

import pytest

from easyddl.launch.output.lines import LONGEST, LastLines, Lines
from easyddl.launch.output.screen import Screen


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_lines_do_not_depend_on_how_data_arrive(size):
    text = b"one\ntwo\r\nbar 1\rbar 2\rbar 3\n\nlast"
    lines, last, found = Lines(), LastLines(), []
    for begin in range(0, len(text), size):
        found += lines.add(text[begin : begin + size])
    assert found == [b"one\n", b"two\r\n", b"bar 1\r", b"bar 2\r", b"bar 3\n", b"\n"]
    rest = lines.rest()
    assert rest == b"last" and not lines.has_unfinished
    last.extend([*found, rest[:1], rest[1:]])
    assert last.texts() == ["one", "two", "bar 3", "last"]


def test_a_line_of_any_length_takes_a_time_in_proportion():
    """A search that begins anew at each byte would take days for it."""
    lines, passed_on = Lines(), 0
    for begin in (b"x" * (1 << 16), b"\r" * (1 << 16), bytes(range(256)) * 256):
        for _ in range(200):
            passed_on += sum(map(len, lines.add(begin)))
    for _ in range(100_000):
        passed_on += sum(map(len, lines.add(b"x")))
    assert passed_on + len(lines.rest()) == 600 * (1 << 16) + 100_000


def test_the_last_lines_are_few_and_show_the_end_of_a_long_one():
    last = LastLines(3)
    last.extend([b"1\n", b"2\n", b"3\n", b"begin " + b"x" * 100_000 + b" end\n"])
    *before, long = last.texts()
    assert before == ["2", "3"]
    assert long.startswith("...xx") and long.endswith("xx end") and len(long) < 1 << 13


@pytest.mark.parametrize("prefixes", [["[0] ", "[1] "], ["", ""]])
def test_long_lines_of_several_ranks_are_whole(prefixes, capfd):
    screen, streams = Screen(2, bool(prefixes[0])), [Lines() for _ in prefixes]
    line = b"x" * (LONGEST - 1000) + b"\n"
    for begin in range(0, 3 * len(line), 1 << 16):
        for rank, stream in enumerate(streams):
            screen.write(rank, "out", stream.add((3 * line)[begin : begin + (1 << 16)]))
    screen.finish()
    expected = [prefix + line.decode() for _ in range(3) for prefix in prefixes]
    assert capfd.readouterr().out == "".join(expected)


def test_unfinished_lines(capfd):
    screen = Screen(2, True)
    for rank, line in ((0, b"question? "), (0, b"answer: "), (1, b"a line\n"), (1, b"last")):
        screen.write(rank, "out", [line])
    screen.finish()
    assert capfd.readouterr().out == "[0] question? answer: \n[1] a line\n[1] last\n"


def test_unfinished_lines_of_streams_that_are_one_file(capfd):
    with mock.patch.object(sys, "stderr", sys.stdout):
        screen = Screen(1, True)
    for stream, line in (("out", b"no end"), ("err", b"Traceback\n"), ("out", b"more\n")):
        screen.write(0, stream, [line])
    assert capfd.readouterr().out == "[0] no end\n[0] Traceback\n[0] more\n"


def test_a_terminal_that_is_gone_ends_no_job():
    terminal, descriptor = os.openpty()
    os.close(terminal)
    with open(descriptor, "wb", buffering=0) as gone, mock.patch.object(sys, "stderr", gone):
        Screen(1, True).tell("SIGHUP has ended the job")
