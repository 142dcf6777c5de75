"""Makes the root alone print TensorFlow's informational messages. Its import has this effect.

TensorFlow reads its log level once, when its libraries are loaded. So this module is imported
before any module that imports a framework. Messages that the libraries print before they read the
level still come from every rank.
"""

import os

from easyddl.runtime import launcher

_LEVEL = "TF_CPP_MIN_LOG_LEVEL"
_WITHOUT_INFORMATION = "1"  # each rank still prints its own warnings and errors


def silence_other_ranks():
    """Hides informational messages on all ranks but the root, unless the user chose a level."""
    if launcher.rank() != 0:
        os.environ.setdefault(_LEVEL, _WITHOUT_INFORMATION)


silence_other_ranks()
