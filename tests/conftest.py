"""The time limit of the soak."""

import os
import time

import pytest

# Seconds since the epoch. `.ci/run` sets it.
UNTIL = float(os.environ.get("EASYDDL_SOAK_UNTIL", "inf"))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Skips what is left of the soak when its time is over."""
    if item.get_closest_marker("soak") and time.time() > UNTIL:
        pytest.skip("no time is left for the soak")
