"""The table of `easyddl scaling`, and the content of its JSON file."""

import dataclasses

from easyddl.cli.scaling import scaling_verdict
from easyddl.hosts.topology_tree import counted

_COLUMNS = ("ranks", "samples/s", "speed-up", "efficiency", "step (ms)", "exposed", "lag", "input")
_WIDTHS = (5, 10, 8, 10, 9, 7, 5, 5)


def header():
    """Returns the line with the names of the columns."""
    return _line(_COLUMNS)


def row(measurement, first):
    """Returns the line of a `Measurement`, with its ratios to the first one."""
    rate, step = measurement.rate, 1000 * measurement.median_step
    return _line(
        [
            str(measurement.ranks),
            f"{rate:.{0 if rate >= 1000 else 1}f}",
            f"{measurement.speed_up(first):.2f}",
            percent(measurement.efficiency(first)),
            f"{step:.{1 if step >= 10 else 2}f}",
            percent(measurement.exposed),
            percent(measurement.lag),
            percent(measurement.input),
        ]
    )


def too_few(measurements, steps):
    """Returns a line on jobs that ended before all steps were measured; `None` without one.

    Args:
        measurements: List of `Measurement`.
        steps: Integer. The requested number of steps.
    """
    few = [
        f"{each.steps} on {counted(each.ranks, 'rank')}"
        for each in measurements
        if each.steps < steps
    ]
    if not few:
        return None
    return f"The script ended before {steps} steps were measured: {', '.join(few)}."


def percent(share):
    """Returns a share in percent; a dash for `None`."""
    return "-" if share is None else f"{100 * share:.0f} %"


def _line(cells):
    return "  ".join(cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))


def as_json(measurements, program):
    """Returns the content of the JSON file.

    Args:
        measurements: List of `Measurement`.
        program: List of strings. The program and its arguments.
    """
    first = measurements[0]
    return {
        "program": program,
        "measurements": [
            {
                **dataclasses.asdict(each),
                "samples_per_second": each.rate,
                "speed_up": each.speed_up(first),
                "efficiency": each.efficiency(first),
                "median_step_seconds": each.median_step,
                "input": each.input,
            }
            for each in measurements
        ],
        "limit": scaling_verdict.sentence(measurements),
    }
