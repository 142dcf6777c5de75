"""The lines that frameworks print when they are loaded, which are the same on all ranks."""

import re

# TensorFlow's and XLA's informational messages of C++, some of which come before they read
# TF_CPP_MIN_LOG_LEVEL, and the error on a machine without CUDA's driver. Other errors and warnings
# are not among them.
_INFORMATION = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called are written"
    rb"|E\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ cuda_platform\.cc:\d+\] .* UNKNOWN ERROR \(303\)"
    rb"|I\d{4} \d\d:\d\d:\d+\.\d+\s+\d+ [\w./]+\.cc:\d+\] "
    rb"|\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: I (tensorflow|external|xla)/"
    rb"|To enable the following instructions: .* rebuild TensorFlow with the appropriate compiler"
)


def is_information(line):
    """Whether a line (bytes) is such a message."""
    return _INFORMATION.match(line) is not None
