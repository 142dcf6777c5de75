"""Importing this module makes only the root print TensorFlow's informational messages.

TensorFlow reads its log level once, when its libraries are loaded. So this module must be imported
before any module that imports a framework. Every rank still prints the messages that the libraries
print before they read the level.
"""

import os

from easyddl.hosts import launched_process

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_WITHOUT_INFORMATION = "1"  # each rank still prints its own warnings and errors


def silence_other_ranks():
    """Hides informational messages on all ranks except the root, unless the user set a level."""
    if launched_process.rank() != 0:
        os.environ.setdefault(_LEVEL, _WITHOUT_INFORMATION)


silence_other_ranks()
