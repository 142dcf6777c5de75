"""The sentence of `easyddl scaling` on what limits the scaling of a script."""

from easyddl.cli import timeline
from easyddl.hosts.topology_tree import counted

_GOOD = 0.9  # the efficiency from which on a script scales well
_SMALLER = 0.75  # the batches of a rank are smaller if their ratio is below this
_MORE = 1.2  # fewer cores explain a computation longer than in inverse proportion up to this factor


def sentence(measurements):
    """Returns a sentence on what limits the scaling at the largest number of ranks.

    Args:
        measurements: List of `Measurement`, in ascending order of the numbers of ranks.

    Returns:
        String.
    """
    first, last = measurements[0], measurements[-1]
    if len(measurements) == 1:
        return "One number of ranks shows no scaling: pass several, as in `-np 1 2 4`."
    if last.efficiency(first) >= _GOOD:
        return (
            f"Scales well: {last.ranks} ranks train {last.speed_up(first):.1f} times as fast as "
            f"{counted(first.ranks, 'rank')}."
        )
    found = losses(first, last)
    return _too_many(last) or _explained(max(found, key=found.get), first, last)


def _too_many(last):
    """Returns a sentence on a host with more ranks than cores or GPUs; `None` without one."""
    # If gradients are on GPUs, the wait for them is not measured.
    kind, name = ("gpus", "GPU") if last.exposed is None else ("cores", "core")
    for host in last.hosts:
        if host["ranks"] > host[kind] > 0:
            where = f" on host {host['host']}" if len(last.hosts) > 1 else ""
            return (
                f"{host['ranks']} ranks share {counted(host[kind], name)}{where}: more ranks than "
                f"{name}s do not train faster."
            )
    return None


def losses(first, last):
    """Divides the time by which a step is longer than the ideal among its causes.

    The ideal is the time of a rank for a sample in the first measurement.

    Args:
        first: `Measurement`.
        last: `Measurement`.

    Returns:
        Dict of seconds by cause.

        - `communication`: the reduction of gradients that no computation hides.
        - `lag`: the wait for the slowest rank.
        - `reading`: reading the batch.
        - `computing`: all other time: computation, callbacks and Keras itself.
    """
    ratio = last.batch / first.batch
    communication, lag, busy = (
        now - ratio * before for now, before in zip(_parts(last), _parts(first), strict=True)
    )
    busy, reading = max(0.0, busy), 0.0
    if None not in (first.reading_seconds, last.reading_seconds):
        # Reading may overlap with computation. Then it lengthens the step by less than its time.
        reading = min(busy, max(0.0, last.reading_seconds - ratio * first.reading_seconds))
    return {
        "communication": communication,
        "lag": lag,
        "reading": reading,
        "computing": busy - reading,
    }


def _parts(measurement):
    """Returns the seconds of a step in three parts: communication, lag and all other time."""
    exposed, lag = measurement.exposed or 0.0, measurement.lag or 0.0
    return [measurement.step * share for share in (exposed - lag, lag, 1 - exposed)]


def _explained(cause, first, last):
    """Returns the sentence on the cause of the largest loss."""
    if cause == "communication":
        return _on_communication(last)
    if cause == "lag":
        return (
            f"The ranks wait for the slowest one for {_percent(last.lag)} of a step: give all "
            "ranks equally fast cores and batches of equal cost."
        )
    if cause == "reading":
        return (
            f"The input pipeline takes {_percent(min(1.0, last.input))} of a step: cache the data, "
            "read them in parallel or prefetch them."
        )
    ratio = last.batch / first.batch
    factor = _parts(last)[-1] / (ratio * _parts(first)[-1])
    before = counted(first.ranks, "rank")
    times = f"{factor:.1f} times as long"
    if last.exposed is None:
        return (
            f"A step takes {times} as with {before}. On GPUs the wait for gradients is not "
            "measured: `easyddl timeline` shows the communication."
        )
    if ratio < _SMALLER:
        return (
            f"A rank computes {times} for a sample as with {before}, and its batches have "
            f"{last.batch:.0f} samples instead of {first.batch:.0f}: keep them large."
        )
    if last.threads < first.threads and factor <= _MORE * first.threads / last.threads:
        return (
            f"A rank has {counted(last.threads, 'core')} instead of {first.threads}, and computes "
            f"{times} as with {before}: more cores or more hosts help."
        )
    return (
        f"A rank computes {times} as with {before}, and its share of the cores does not explain "
        "it: ranks share caches and memory bandwidth, or other programs use the cores."
    )


def _on_communication(last):
    exposed = last.exposed - last.lag
    advice = "larger batches"
    if len(last.hosts) > 1:
        advice = (
            "larger batches or a faster network. `easyddl plan --topology FILE --explain "
            f"--size {last.gradient_bytes}B` computes the time of this model's gradients on the "
            "network of FILE, by number of hosts"
        )
        if last.wire_dtype == "float32":
            advice += f". {timeline.gain_of_16_bits(exposed)}"
    share = _percent(exposed)
    return f"{share} of a step is communication that no computation hides: use {advice}."


def _percent(share):
    return f"{100 * share:.0f} %"
