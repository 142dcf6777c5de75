"""Keeps TensorFlow from saying on every rank what one may say. It acts as it is imported.

TensorFlow reads the level of its messages once, as its libraries are loaded: so this comes before
all modules that import a framework. What the libraries say before they read it stays.
"""

import os

from easyddl.runtime import launcher

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_WITHOUT_INFORMATION = "1"  # warnings and errors are a rank's own


def silence_other_ranks():
    """Leaves out what is for information, on all ranks but the root, unless the user has chosen."""
    if launcher.rank() != 0:
        os.environ.setdefault(_LEVEL, _WITHOUT_INFORMATION)


silence_other_ranks()
