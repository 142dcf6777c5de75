"""The signals that end a job."""

import signal

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
