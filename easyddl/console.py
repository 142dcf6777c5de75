"""What easyddl says to the person at the terminal."""

import sys


def say(message):
    """Prints a line to standard error; the caller decides on which rank."""
    print(f"easyddl: {message}", file=sys.stderr, flush=True)
