"""The processor, the memory and the GPUs of a host."""

import os
import pathlib
import re

from easyddl.machine import hardware
from easyddl.machine.kernel_file import read_text

# The CPU features by which the engine, NumPy and the backends choose their kernels.
_FEATURES = frozenset(
    (
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
        *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
        *("asimd", "sve", "sve2", "bf16", "i8mm"),
    )
)


def facts():
    """Reads facts about the hardware from the operating system and the GPU driver.

    Returns:
        Dictionary: the entries of `easyddl.machine.hardware.facts`, `cpu_features`, `usable_cpus`
        and `usable_cores` (the logical CPUs and the physical cores that this process may use), and
        `memory` in bytes.
    """
    return {
        **hardware.facts(),
        "cpu_features": _features(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "usable_cores": hardware.usable_physical_cores(),
        "memory": memory("MemTotal"),
    }


def memory(name):
    """Returns a number of bytes from /proc/meminfo.

    Args:
        name: String. The name of a line, such as `MemAvailable`.

    Returns:
        Integer; 0 if there is no such line.
    """
    text = read_text(pathlib.Path("/proc/meminfo"))
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _features():
    text = read_text(pathlib.Path("/proc/cpuinfo"))
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return sorted(_FEATURES & set(found[1].split())) if found else []
