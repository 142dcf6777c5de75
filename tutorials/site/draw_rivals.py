"""Draws the charts of tutorials/performance.md from its tables.

    python tutorials/site/draw_rivals.py tutorials

It needs no package besides Python's own. `tests/tutorials/test_pictures.py` checks that the files
in the repository are what this script writes.
"""

import math
import pathlib
import re
import sys

PAGE = pathlib.Path(__file__).parents[1] / "performance.md"

INK, GRID, PAPER = "#1b2733", "#d5dce3", "#ffffff"
COLOURS = {
    "easyddl": "#0b6e4f",
    "MPICH": "#c8553d",
    "Open MPI": "#6a4c93",
    "flat ring": "#2b6cb0",
    "gloo": "#8a6d00",
    "rival": "#c8553d",
}
UNITS = {"KiB": 2**10, "MiB": 2**20, "MB": 10**6}
PANEL, GAP, TOP, BOTTOM, LEFT = 230, 26, 62, 62, 62
HEIGHT = 360


def rows(heading):
    """The rows of the first table below a heading, each as a list of its cells."""
    section = PAGE.read_text().split(f"\n## {heading}\n", 1)[1]
    table = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)[0]
    return [[cell.strip() for cell in line.strip("|\n").split("|")] for line in table.splitlines()]


def allreduce_times():
    """The microseconds of an allreduce: by the ranks, the library and the bytes."""
    head, _, *lines = rows("One host")
    found = {}
    for line in lines:
        ranks, number, unit = re.fullmatch(r"(\d+) ranks, (\d+) (\w+)", line[0]).groups()
        size = int(number) * UNITS[unit]
        for label, cell in zip(head[1:-1], line[1:-1], strict=True):
            times = [float(each) for each in cell.split(",")]
            name = label.partition(" (")[0]
            mean = math.prod(times) ** (1 / len(times))  # of easyddl's two, as in the table
            found.setdefault(int(ranks), {}).setdefault(name, []).append((size, mean))
    return found


def trainings():
    """The speed of two processes over that of one: the label, easyddl's, and the rival's."""
    head, _, *lines = rows("Weak scaling")
    ours, theirs = head.index("easyddl / one process"), head.index("rival / one process")
    named = head.index("rival / its control")
    return [
        (line[0], float(line[ours]), float(line[theirs]), re.search(r"\((\w+)\)", line[named])[1])
        for line in lines
    ]


def accuracies():
    """The label of each training, and its accuracy and standard error in percent."""
    _, _, *lines = rows("Sixteen bits between hosts")
    return [(label, *map(float, re.findall(r"[\d.]+", cell))) for label, cell in lines]


def start(width, height, title):
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="13" fill="{INK}">'
    )
    yield f"<title>{title}</title>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="{PAPER}"/>'


def text(x, y, words, anchor="middle", size=13, fill=INK):
    return (
        f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}" font-size="{size}" fill="{fill}">'
        f"{words}</text>"
    )


def line(x1, y1, x2, y2, colour=GRID):
    return f'<path d="M{x1:g} {y1:g} L{x2:g} {y2:g}" stroke="{colour}"/>'


def panel(left, ranks, series, scale):
    """Draws the times at one number of ranks over the size, both on logarithmic axes."""
    low, high = math.log(1024), math.log(10**8)

    def x_of(size):
        return round(left + (math.log(size) - low) / (high - low) * PANEL, 1)

    yield text(left + PANEL / 2, TOP - 12, f"{ranks} ranks", size=15)
    for power in range(0, 7):
        yield line(left, scale(10**power), left + PANEL, scale(10**power))
    for label, size in (("1 KiB", 2**10), ("64 KiB", 2**16), ("4 MiB", 2**22), ("100 MB", 10**8)):
        yield line(x_of(size), TOP, x_of(size), HEIGHT - BOTTOM)
        # The last two sizes are close to each other.
        anchor = {"1 KiB": "start", "4 MiB": "end", "100 MB": "end"}.get(label, "middle")
        yield text(x_of(size), HEIGHT - BOTTOM + 18, label, anchor=anchor, size=11)
    for name, points in series.items():
        path = " ".join(f"{x_of(size):g},{scale(time):g}" for size, time in points)
        colour = COLOURS[name]
        width = 3 if name == "easyddl" else 1.8
        yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>'
        for size, time in points:
            yield f'<circle cx="{x_of(size):g}" cy="{scale(time):g}" r="3" fill="{colour}"/>'


def legend(names, y):
    left = LEFT
    for name in names:
        yield f'<rect x="{left}" y="{y - 10}" width="14" height="10" fill="{COLOURS[name]}"/>'
        yield text(left + 20, y, name, anchor="start")
        left += 44 + 8 * len(name)


def allreduce_chart():
    times = allreduce_times()
    width = LEFT + len(times) * (PANEL + GAP)

    def scale(time):
        share = math.log10(time / 0.3) / math.log10(10**6 / 0.3)
        return round(HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP), 1)

    yield from start(width, HEIGHT, "Time of an allreduce on one host, beside MPI and gloo")
    yield text(LEFT, 26, "Time of an allreduce of float32 on one host", anchor="start", size=16)
    units = ("1 µs", "10 µs", "100 µs", "1 ms", "10 ms", "100 ms", "1 s")
    for power, label in enumerate(units):
        yield text(LEFT - 6, scale(10**power) + 4, label, anchor="end", size=12)
    for index, (ranks, series) in enumerate(times.items()):
        yield from panel(LEFT + index * (PANEL + GAP), ranks, series, scale)
    yield from legend(next(iter(times.values())), HEIGHT - 16)
    yield "</svg>"


def training_chart():
    found = trainings()
    width, left, bar = LEFT + 3 * (PANEL + GAP), 320, 20
    height = 70 + len(found) * 66 + 40
    length = width - left - 110
    title = "Speed of two processes with a core each, over one process (2 is the ideal)"
    yield from start(width, height, "Training beside DDP and DataParallel")
    yield text(16, 28, title, anchor="start", size=16)
    for ideal in (0.5, 1, 1.5, 2):
        x = left + ideal / 2 * length
        yield line(x, 48, x, height - 34)
        yield text(x, height - 16, f"{ideal:g}", size=12)
    for index, (label, ours, theirs, rival) in enumerate(found):
        top = 56 + index * 66
        yield text(left - 12, top + 26, label, anchor="end")
        for row, (name, share, key) in enumerate(
            (("easyddl", ours, "easyddl"), (rival, theirs, "rival"))
        ):
            y = top + row * (bar + 3)
            speed = 2 * share  # the table has the share of the ideal
            size = round(speed / 2 * length, 1)
            yield (
                f'<rect x="{left}" y="{y}" width="{size:g}" height="{bar}" fill="{COLOURS[key]}"/>'
            )
            yield text(left + size + 6, y + 15, f"{speed:.2f} {name}", anchor="start")
    yield "</svg>"


def accuracy_chart():
    found = accuracies()
    width, left, low, high = 640, 260, 96, 98
    height = 70 + len(found) * 34 + 40

    def x_of(percent):
        return round(left + (percent - low) / (high - low) * (width - left - 40), 1)

    title = "Accuracy on held-out samples, with the standard error of five seeds"
    yield from start(width, height, "Accuracy with float32, bfloat16 and float16 between hosts")
    yield text(16, 28, title, anchor="start", size=16)
    for percent in (96, 96.5, 97, 97.5, 98):
        yield line(x_of(percent), 48, x_of(percent), height - 34)
        yield text(x_of(percent), height - 16, f"{percent:g} %", size=12)
    for index, (label, mean, error) in enumerate(found):
        y, colour = 70 + index * 34, COLOURS["easyddl" if index else "flat ring"]
        yield text(left - 12, y + 4, label, anchor="end")
        yield line(x_of(mean - error), y, x_of(mean + error), y, colour)
        yield f'<circle cx="{x_of(mean):g}" cy="{y}" r="5" fill="{colour}"/>'
    yield "</svg>"


CHARTS = {
    "accuracy.svg": accuracy_chart,
    "allreduce.svg": allreduce_chart,
    "training.svg": training_chart,
}

if __name__ == "__main__":
    for name, chart in CHARTS.items():
        (pathlib.Path(sys.argv[1]) / name).write_text("\n".join(chart()) + "\n")
