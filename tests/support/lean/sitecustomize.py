"""Makes the imports of a job's processes cheap. Python imports this module at the start of each.

It hides the libraries that EASYDDL_TEST_HIDDEN lists: Keras and TensorFlow import several others
where they are installed, in more than half of the time that their own import takes. And it stops
the garbage collector while a large package is imported: collections take a fifth of that time. What
an import has made stays for good, so later collections do not look through it either.
"""

import functools
import gc
import importlib.machinery
import os
import sys

HIDDEN = os.environ.get("EASYDDL_TEST_HIDDEN", "").split()
LARGE = ("easyddl", "jax", "keras", "tensorflow", "torch")


def without_collections(execute):
    """Wraps a loader's `exec_module`."""

    @functools.wraps(execute)
    def execute_without_collections(module):
        if not gc.isenabled():  # another import is being executed around this one
            return execute(module)
        gc.disable()
        try:
            execute(module)
        finally:
            gc.freeze()
            gc.enable()

    return execute_without_collections


class LeanFinder(importlib.machinery.PathFinder):
    """Finds what the path has, but for what is hidden; modules of `LARGE` load quickly."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in HIDDEN:
            return None
        spec = super().find_spec(fullname, path, target)
        if fullname in LARGE and spec is not None and spec.loader is not None:
            spec.loader.exec_module = without_collections(spec.loader.exec_module)
        return spec


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = LeanFinder
