"""The position of the main thread, which other ranks print if they wait too long."""

import runpy

from easyddl.runtime import main_thread


def library(depth):
    return library(depth - 1) if depth else main_thread.where()


def test_the_line_of_the_script_is_shown_within_a_deep_call(tmp_path):
    path = tmp_path / "script.py"
    path.write_text("\nfound = library(20)\n")
    names = {"library": library}
    found = runpy.run_path(str(path), names, run_name="__main__")["found"]
    assert found.startswith(f'  File "{path}", line 2, in <module>'), found
