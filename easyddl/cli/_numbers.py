"""Converts numbers in the options of commands."""

import argparse
import math


def positive(text):
    """Converts a text to a positive integer."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer. Received: {text!r}")
    return int(text)


def seconds(text):
    """Converts a text to a finite number, at least 0."""
    value = _float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds. Received: {text!r}")
    return value


def seconds_above_0(text):
    """Converts a text to a finite number above 0."""
    value = _float(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a number of seconds above 0. Received: {text!r}")
    return value


def _float(text):
    try:
        return float(text)
    except ValueError:
        return math.nan
