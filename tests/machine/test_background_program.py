import os
import signal
import sys
import time

import leftovers
import pytest

from easyddl.machine.background_program import BackgroundProgram


def shell(script, **options):
    return BackgroundProgram(["sh", "-c", script], **options)


def wait_for(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_output_and_status():
    program = shell("echo first; echo second >&2; cat; echo $WORD; exit 7", env={"WORD": "third"})
    assert program.wait(20) and program.has_ended() and program.status == 7
    assert program.output(1000) == "first\nsecond\nthird\n"
    assert program.output(8) == "d\nthird\n"
    program.close()


def test_output_is_read_while_it_is_written():
    program = shell("echo a; exec sleep 60")
    wait_for(lambda: program.output(100))
    assert program.output(100) == "a\n" and program.status is None
    assert not program.wait(0)
    program.ask_to_end()
    assert program.wait(20) and program.status == -signal.SIGTERM
    program.ask_to_end()
    program.kill()
    program.close()


def test_more_output_than_a_pipe_holds():
    program = BackgroundProgram([sys.executable, "-c", "print('x' * 1_000_000)"])
    assert program.wait(20) and program.status == 0
    assert program.output(3) == "xx\n"
    program.close()


def test_descendants_in_other_sessions_are_killed():
    program = shell("trap '' TERM; setsid sleep 60 & echo $!; wait; sleep 60")
    wait_for(lambda: "\n" in program.output(100))
    child = int(program.output(100))
    program.ask_to_end()
    assert not program.wait(0.2)
    program.kill()
    assert program.status == -signal.SIGKILL
    wait_for(lambda: not leftovers.is_running(child))
    program.close()


def test_a_program_that_does_not_exist():
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        BackgroundProgram(["/no-such-program"])


def test_a_forked_process_leaves_the_program_alone():
    program = shell("sleep 60")
    child = os.fork()
    if child == 0:
        program.forget()
        os._exit(0 if program.status == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert program.status is None
    program.kill()
    program.close()
