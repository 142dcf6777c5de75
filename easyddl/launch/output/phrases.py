"""Phrases of messages about a job."""

import signal


def sentence(text):
    """Ends a text by a full stop, unless it ends a sentence already.

    Args:
        text: String, such as the message of an error.
    """
    return text if text.endswith((".", "?", "!")) else f"{text}."


def end_of_process(status):
    """Returns how a process ended.

    Args:
        status: Integer. As `subprocess` gives it: negative for a process that a signal killed.
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
