"""The table, the JSON file and the picture of `easyddl scaling`."""

import dataclasses
import shlex

from easyddl.cli.scaling import scaling_verdict
from easyddl.hosts.topology_tree import counted
from easyddl.launch.output import text_table

_COLUMNS = ("ranks", "samples/s", "speed-up", "efficiency", "step (ms)", "exposed", "lag", "input")
_WIDTHS = (5, 10, 8, 10, 9, 7, 5, 5)
_MEASURED, _IDEAL = "#0072b2", "#777777"


def header():
    """Returns the line with the names of the columns."""
    return text_table.line(_COLUMNS, _WIDTHS)


def row(measurement, first):
    """Returns the line of a `Measurement`, with its ratios to the first one."""
    rate, step = measurement.rate, 1000 * measurement.median_step
    efficiency = measurement.efficiency(first)
    shares = (efficiency, measurement.exposed, measurement.lag, measurement.input)
    percents = ["-" if share is None else f"{100 * share:.0f} %" for share in shares]
    rates = [f"{rate:.{0 if rate >= 1000 else 1}f}", f"{measurement.speed_up(first):.2f}"]
    step_time = f"{step:.{1 if step >= 10 else 2}f}"
    cells = [str(measurement.ranks), *rates, percents[0], step_time, *percents[1:]]
    return text_table.line(cells, _WIDTHS)


def too_few(measurements, steps):
    """Yields a line on the jobs that ended before all steps were measured, if there are any.

    Args:
        measurements: List of `Measurement`.
        steps: Integer. The requested number of steps.
    """
    few = [each for each in measurements if each.steps < steps]
    if few:
        told = ", ".join(f"{each.steps} on {counted(each.ranks, 'rank')}" for each in few)
        yield f"The script ended before {steps} steps were measured: {told}."


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


def plot(measurements, program, path):
    """Draws the samples per second beside the ideal, and the efficiency.

    Args:
        measurements: List of `Measurement`.
        program: List of strings. The program and its arguments.
        path: String. The file to write, which ends in `.png`.
    """
    from matplotlib.figure import Figure  # not pyplot, which would look for a display

    first, hosts = measurements[0], measurements[-1].hosts
    cores, gpus = (sum(host[kind] for host in hosts) for kind in ("cores", "gpus"))
    where = [counted(len(hosts), "host"), counted(cores, "core")]
    where += [counted(gpus, "GPU")] if gpus else []
    title = f"{shlex.join(program)} on {', '.join(where)}"
    ranks = [each.ranks for each in measurements]
    figure = Figure(figsize=(8, 3.6), dpi=150, layout="constrained")
    figure.suptitle(title, fontsize="medium", wrap=True, parse_math=False)
    rates, efficiencies = figure.subplots(1, 2)
    ideal = [first.rate * number / first.ranks for number in ranks]
    rates.plot(ranks, ideal, "--", color=_IDEAL, label="ideal")
    rates.plot(ranks, [each.rate for each in measurements], "o-", color=_MEASURED, label="measured")
    rates.set_ylabel("samples per second, all ranks")
    rates.legend(frameon=False)
    efficiencies.axhline(100, linestyle="--", color=_IDEAL)
    percents = [100 * each.efficiency(first) for each in measurements]
    efficiencies.plot(ranks, percents, "o-", color=_MEASURED)
    efficiencies.set_ylabel(f"efficiency against {counted(first.ranks, 'rank')} (%)")
    for axes in (rates, efficiencies):
        axes.set_xlabel("ranks")
        axes.set_xticks(ranks)
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
    figure.savefig(path)
