"""The picture of `easyddl scaling`."""

_MEASURED, _IDEAL = "#0072b2", "#777777"


def draw(measurements, title, path):
    """Draws the samples per second beside the ideal, and the efficiency.

    Args:
        measurements: List of `Measurement`.
        title: String.
        path: String. The file to write, which ends in `.png`.
    """
    # Not pyplot, which would look for a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    first = measurements[0]
    ranks = [each.ranks for each in measurements]
    figure = Figure(figsize=(8, 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
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
    efficiencies.set_ylabel(f"efficiency against {first.ranks} rank{'s' * (first.ranks > 1)} (%)")
    for axes in (rates, efficiencies):
        axes.set_xlabel("ranks")
        axes.set_xticks(ranks)
        axes.set_ylim(0, 1.08 * axes.dataLim.ymax)
        axes.grid(color="#dddddd")
        axes.set_axisbelow(True)
    figure.savefig(path)
