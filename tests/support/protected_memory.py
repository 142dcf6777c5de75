"""Ranks whose memory the kernel protects from other processes."""

import ctypes
import os

PR_SET_DUMPABLE = 4
CAPGET, CAPSET = {"x86_64": (125, 126), "aarch64": (90, 91)}[os.uname().machine]


def set_reachable(is_reachable):
    """Lets other processes of its user reach this process's memory, or not, as `os.setuid` may."""
    library = ctypes.CDLL(None, use_errno=True)
    assert library.prctl(PR_SET_DUMPABLE, int(is_reachable), 0, 0, 0) == 0


def drop_capability_to_trace():
    """Takes from this process, if it is root's, the right to reach into any process's memory."""
    library = ctypes.CDLL(None, use_errno=True)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    data = (ctypes.c_uint32 * 6)()
    assert library.syscall(CAPGET, header, data) == 0
    for word in (0, 1):  # effective, permitted
        data[word] &= ~(1 << 19)  # CAP_SYS_PTRACE
    assert library.syscall(CAPSET, header, data) == 0
