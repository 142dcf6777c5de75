"""The processor, the memory and the GPUs of a host."""

import os
import pathlib
import re

from easyddl.runtime import hardware

# Those that the kernels of the engine, of NumPy and of the backends choose by.
_FEATURES = frozenset(
    (
        *("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl"),
        *("avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"),
        *("asimd", "sve", "sve2", "bf16", "i8mm"),
    )
)


def facts():
    """Reads what the kernel and the driver tell.

    Returns:
        Dictionary: the entries of `easyddl.runtime.hardware.facts`; besides `cpu_features`,
        `usable_cpus` and `usable_cores` (logical and physical ones of this process), and `memory`
        in bytes.
    """
    return {
        **hardware.facts(),
        "cpu_features": _features(),
        "usable_cpus": len(os.sched_getaffinity(0)),
        "usable_cores": hardware.usable_physical_cores(),
        "memory": memory("MemTotal"),
    }


def memory(name):
    """A line of /proc/meminfo.

    Args:
        name: String, such as `MemAvailable`.

    Returns:
        Integer of bytes; 0 if the kernel does not tell it.
    """
    found = re.search(rf"^{name}:\s+(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
    return 1024 * int(found[1]) if found else 0


def _features():
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _text("/proc/cpuinfo"), re.MULTILINE)
    return sorted(_FEATURES & set(found[1].split())) if found else []


def _text(path):
    try:
        return pathlib.Path(path).read_text(errors="replace")
    except OSError:
        return ""
