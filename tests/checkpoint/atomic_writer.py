"""A process that writes, to be killed: `atomic_writer.py KIND PATH FATAL`.

It prints a number when what it has written under that number is there. It dies before its
FATAL-th act on the file system, counted from 1. It needs nothing but Python, so that many of it
can be started.
"""

import os
import pathlib
import signal
import sys
import types

_PIECE = 1 << 20


def load_atomic():
    """The module alone, without the package, whose import takes seconds."""
    package = types.ModuleType("easyddl")
    package.__path__ = [str(pathlib.Path(__file__).parents[2] / "easyddl")]
    sys.modules["easyddl"] = package
    from easyddl.checkpoint import atomic_files

    return atomic_files


def fill(path, number, pieces):
    with open(path, "wb") as file:
        for _ in range(pieces):
            file.write(bytes([number % 256]) * _PIECE)


def content(path):
    """The number that a whole file holds; an error if it is not whole."""
    data = pathlib.Path(path).read_bytes()
    assert data and len(data) % _PIECE == 0, len(data)
    assert data == data[:1] * len(data)
    return data[0]


def write(atomic, kind, path, number, pieces):
    """Writes what holds a number."""
    if kind == "file":
        atomic.write_entries(path, lambda temporary: fill(temporary, number, pieces))
        return

    def fill_both(folder):
        fill(folder / "weights", number, pieces)
        fill(folder / "state", number, 1)

    atomic.Generations(path, keep=1 if kind == "directory" else 2).add(fill_both)


def read(atomic, kind, path):
    """The number of the last whole state, after what follows a restart; 0 if there is none."""
    if kind == "file":
        atomic.remove_leftovers(path)
        return content(path) if os.path.exists(path) else 0
    states = atomic.Generations(path, keep=1 if kind == "directory" else 2)
    states.clean()
    found = states.find()
    numbers = [content(state / "weights") for state in found]
    assert numbers == [content(state / "state") for state in found]
    return numbers[0] if numbers else 0


def die_at(fatal):
    acts = 0

    def hook(event, arguments):
        nonlocal acts
        if event.startswith(("open", "os.", "shutil.")) and event != "os.kill":
            acts += 1
            if acts == fatal:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def main(kind, path, fatal):
    atomic = load_atomic()
    number = read(atomic, kind, path) + 1
    die_at(int(fatal))
    write(atomic, kind, path, number, pieces=1)
    print(number, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
