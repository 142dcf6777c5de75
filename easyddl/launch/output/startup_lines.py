"""The lines that frameworks print when they are loaded, which are the same on all ranks."""

import re

# TensorFlow's and XLA's informational messages of C++, some of which come before they read
# TF_CPP_MIN_LOG_LEVEL, and the error on a host without CUDA's driver. Other errors and warnings
# are not among them.
_INFORMATION = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written"
    rb"|E\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ cuda_platform\.cc:\d+\] .* UNKNOWN ERROR \(303\)"
    rb"|I\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ [\w./]+\.cc:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (tensorflow|external|xla)/"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler"
)


def is_information(line):
    """Returns whether a line (bytes) is such a message."""
    return _INFORMATION.match(line) is not None


# TensorFlow prints these once for each of its libraries, in the same process.
_OF_EACH_LIBRARY = re.compile(
    rb"WARNING: All log messages before absl|To enable the following instructions: "
    rb"|[^\]]*\b(?:port|cudart_stub|cpu_feature_guard)\.cc:\d+\] "
)

_TIME_AND_PLACE = re.compile(rb"\A[I\d][^\]]*\] ")


class Shown:
    """Chooses which of these messages are shown: those of rank 0, and each of them once."""

    def __init__(self):
        self._seen = set()

    def shows(self, rank, line):
        """Returns whether a line (bytes) of a rank's standard error is shown."""
        if not is_information(line):
            return True
        if rank or not _OF_EACH_LIBRARY.match(line):
            return not rank
        text = _TIME_AND_PLACE.sub(b"", line.rstrip())
        is_new = text not in self._seen
        self._seen.add(text)
        return is_new
