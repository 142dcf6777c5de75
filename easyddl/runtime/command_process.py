"""Whether this process runs a command, and how Python imports a command.

`import easyddl` imports this module before all others, because its import already changes where
Python searches for modules, and what Ctrl-C does. So it imports only modules itself that Python has
already loaded.
"""

import os
import sys

_COMMANDS = ("run", "doctor", "info", "plan", "scaling", "timeline")  # of `easyddl`, without Keras
_MODULES = ("easyddl.launch.", "easyddl.doctor.")  # of `python -m`


def python(module):
    """Returns the command line that runs a module of easyddl in the current directory.

    From Python 3.11 on, the user's files there do not replace modules that Python itself imports.
    """
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    # Sources that are not installed are only found there.
    is_safe = sys.version_info >= (3, 11) and not os.path.samefile(root, os.curdir)
    return [sys.executable, *["-P"] * is_safe, "-m", module]


def is_command():
    """Returns whether this process runs a command that needs no Keras.

    Call it while easyddl is imported.
    """
    given = _arguments()
    if given is not None:
        return not given or given[0].startswith("-") or given[0] in _COMMANDS
    return (_module() or "").startswith(_MODULES)


def _arguments():
    """Returns the arguments of the command `easyddl`; `None` if this process is another."""
    name, *given = getattr(sys, "argv", None) or [""]
    is_easyddl = os.path.basename(name) == "easyddl" or _module() == "easyddl"
    return given if is_easyddl else None


def _module():
    """Returns the name after `python -m`; `None` if Python was not started so.

    Python imports the package before it replaces "-m" by the path of the module.
    """
    arguments = getattr(sys, "argv", None) or [""]
    if arguments[0] != "-m":
        return None
    return sys.orig_argv[len(sys.orig_argv) - len(arguments)]


def _search_current_directory_last():
    """Makes Python's own modules come before files of the current directory with the same names.

    `python -m` searches that directory first. A user's `random.py` is for the user's script alone,
    which runs in another process.
    """
    is_module = _module() == "easyddl" or (_module() or "").startswith(_MODULES)
    try:
        if is_module and sys.path[0] == os.getcwd():
            sys.path.append(sys.path.pop(0))
    except FileNotFoundError:  # of the current directory, which Python has left out then
        pass


def _exit(number, frame):
    os.write(2, b"easyddl: interrupted\n")
    os._exit(128 + number)


def _exit_on_ctrl_c():
    """Makes Ctrl-C end this process with one line, until `raise_on_ctrl_c` is called.

    Nothing catches a `KeyboardInterrupt` while Python imports the command: Python prints a
    traceback, or even ignores the exception in a callback of the import system.
    """
    import signal  # not before the search path is right

    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    try:  # noqa: SIM105 - `contextlib` is large, and Ctrl-C would print a traceback meanwhile
        signal.signal(signal.SIGINT, _exit)
    except ValueError:  # this is not the main thread
        pass


def raise_on_ctrl_c():
    """Lets Ctrl-C raise a `KeyboardInterrupt` again, which the command handles from now on."""
    import signal

    if signal.getsignal(signal.SIGINT) is _exit:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_search_current_directory_last()
if _arguments() is not None:
    _exit_on_ctrl_c()
