"""The table and the picture of `easyddl bench`."""

from easyddl.cli.bench import BOUNDS
from easyddl.launch.output import text_table

# The label, the color and the marker of each line. Colour-blind people can distinguish the colors.
LOOKS = {
    "easyddl": ("easyddl", "#0072b2", "o"),
    "mpi": ("MPI_Allreduce", "#d55e00", "s"),
    "ring": ("flat ring", "#009e73", "^"),
    "gloo": ("gloo", "#cc79a7", "D"),
    "bfloat16": ("bfloat16", "#56b4e9", "v"),
    "float16": ("float16", "#e69f00", "<"),
    "copy": ("copy bound", "#777777", "."),
    "wire": ("wire bound", "#000000", "."),
}
_NONE = "-"


def format_bytes(size):
    """Formats a number of bytes with the shortest unit: `"1 KiB"`, `"100 MB"`, `"4 bytes"`."""
    counts = [(size, "bytes")]
    for base, units in ((1024, ("KiB", "MiB", "GiB")), (1000, ("kB", "MB", "GB"))):
        for power, unit in enumerate(units, start=1):
            if size % base**power == 0:
                counts.append((size // base**power, unit))
    return "{} {}".format(*min(counts))


def format_seconds(seconds):
    """Formats a time in seconds with three digits, `"1.23 us"`; `None` as a dash."""
    if seconds is None:
        return _NONE
    unit, number = "ns", seconds * 1e9
    for longer in ("us", "ms", "s"):
        if number >= 999.5:
            unit, number = longer, number / 1000
    digits = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{digits}f} {unit}"


class Table:
    """A table with three lines for each size. It can be printed size by size.

    Args:
        algorithms: List of names. Each of them gets a column.
    """

    def __init__(self, algorithms):
        self._algorithms = algorithms
        self._columns = [LOOKS[name][0] for name in (*algorithms, *BOUNDS)]
        if "easyddl" in algorithms:
            if "mpi" in algorithms:
                self._columns.append("MPI/easyddl")
            self._columns += ["of copy", "of wire"]
        self._widths = [max(9, len(column)) for column in self._columns]

    def header(self):
        """Returns the line with the names of the columns."""
        return self._line("", self._columns)

    def rows(self, result):
        """Returns the lines of one size: medians with their ratios, best round, worst round.

        Args:
            result: Dictionary. The result of `Bench.compare`.
        """
        spread = [self._of_rounds(which, result[which]) for which in ("least", "worst")]
        return "\n".join([self._medians(result), *spread])

    def _of_rounds(self, which, seconds):
        cells = [format_seconds(seconds.get(name)) for name in (*self._algorithms, *BOUNDS)]
        return self._line(which, cells)

    def _medians(self, result):
        seconds, bounds = result["seconds"], result["bounds"]
        cells = [format_seconds(seconds[name]) for name in self._algorithms]
        cells += [format_seconds(bounds[name]) for name in BOUNDS]
        if "easyddl" in seconds:
            ours = seconds["easyddl"]
            if "mpi" in seconds:
                cells.append(f"{seconds['mpi'] / ours:.2f}")
            cells += [
                _NONE if bounds[name] is None else f"{bounds[name] / ours:.0%}" for name in BOUNDS
            ]
        return self._line(format_bytes(result["bytes"]), cells)

    def _line(self, name, cells):
        cells = [*cells, *[""] * (len(self._columns) - len(cells))]
        return text_table.line([name, *cells], [12, *self._widths])


def plot(report, path):
    """Draws the times of all sizes on logarithmic axes, and writes the picture.

    A line shows the median. The band around the line of an algorithm extends from its best to its
    worst round.

    Args:
        report: Dictionary with the content of the file that `easyddl bench --json` writes.
        path: String. The name of the file, ending in `.png`.
    """
    from matplotlib.figure import Figure  # not pyplot, which would look for a display
    from matplotlib.ticker import EngFormatter, NullFormatter

    results = sorted(report["results"], key=lambda result: result["bytes"])
    sizes = [result["bytes"] for result in results]
    figure = Figure(figsize=(9, 5.5), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    lines = [("seconds", name) for name in report["algorithms"]]
    lines += [("bounds", name) for name in report["bounds"]]
    for kind, name in lines:
        label, color, marker = LOOKS[name]
        axes.plot(
            sizes,
            [result[kind][name] for result in results],
            label=label,
            color=color,
            marker=marker,
            markersize=5,
            linestyle="-" if kind == "seconds" else "--",
            linewidth=2.2 if name == "easyddl" else 1.4,
            zorder=3 if name == "easyddl" else 2,
        )
    for name in report["algorithms"]:
        spread = [[result[which][name] for result in results] for which in ("least", "worst")]
        axes.fill_between(sizes, *spread, color=LOOKS[name][1], alpha=0.15, linewidth=0, zorder=1)
    times = [
        result[which][name]
        for result in results
        for which in ("least", "worst")
        for name in report["algorithms"]
    ]
    times += [result["bounds"][name] for result in results[-1:] for name in report["bounds"]]
    for axis, scale, limits, values, unit in (
        (axes.xaxis, axes.set_xscale, axes.set_xlim, sizes, "B"),
        # The bounds of the smallest sizes are far below all other times.
        (axes.yaxis, axes.set_yscale, axes.set_ylim, times, "s"),
    ):
        scale("log")
        # More than a decade, so that a tick is visible.
        limits(min(values) / 3.5, max(values) * 3.5)
        axis.set_major_formatter(EngFormatter(unit))
        axis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("data on each rank")
    axes.set_ylabel("time of a call (median, best to worst round)")
    axes.set_title(title(report), fontsize=10)
    axes.grid(True, which="major", color="#dddddd")
    axes.set_axisbelow(True)
    figure.legend(loc="outside right upper", frameon=False)
    figure.savefig(path)


def title(report):
    """Returns a line on the ranks, hosts and MPI with which a report was measured."""
    ranks, hosts = report["ranks"], report["hosts"]
    return (
        f"allreduce (sum, float32): {ranks} rank{'s' * (ranks > 1)} on {hosts} "
        f"host{'s' * (hosts > 1)}, {report['cores']} cores{' (busy)' * report['busy']}, "
        f"{report['mpi']}"
    )
