"""Hides from a job's processes the libraries that EASYDDL_TEST_HIDDEN lists.

Keras and TensorFlow import several others where they are installed, in more than half of the time
that their own import takes. Python imports this module by its name, at the start of a process.
"""

import importlib.machinery
import os
import sys

HIDDEN = os.environ.get("EASYDDL_TEST_HIDDEN", "").split()


class LeanFinder(importlib.machinery.PathFinder):
    """Finds what the path has, but for what is hidden."""

    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in HIDDEN:
            return None
        return super().find_spec(fullname, path, target)


sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = LeanFinder
