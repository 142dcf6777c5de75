"""Merges the trace files of a job into one timeline, and prints a summary of it.

Run the job with `EASYDDL_TIMELINE=DIR`, then run `easyddl timeline DIR`. Open the resulting file
at https://ui.perfetto.dev.
"""

import pathlib
import sys

from easyddl.launch.output import text_table

SUMMARY = "merge the trace files of a job's ranks and print a summary"
_FILE = "timeline.json"
_MUCH = 0.1  # from this share of a step on, exposed communication is worth advice


def add_arguments(parser):
    """Adds the arguments of `easyddl timeline`."""
    parser.add_argument(
        "directory", help="the directory that EASYDDL_TIMELINE named", metavar="DIR"
    )
    parser.add_argument(
        "--output", help=f"the merged file to write (default: DIR/{_FILE})", metavar="FILE"
    )


def run(options):
    """Merges the files and prints the summary.

    Returns:
        The exit status.
    """
    from easyddl.profiling import chrome_trace, merged_timeline, overlap_analysis

    output = options.output or pathlib.Path(options.directory, _FILE)
    try:
        ranks = merged_timeline.read(options.directory)
        analyses = [overlap_analysis.analyze(rank.spans()) for rank in ranks]
    except (OSError, ValueError) as error:
        print(f"easyddl timeline: error: {error}", file=sys.stderr)
        return 1
    for rank in ranks:
        if not rank.is_whole:
            print(
                f"easyddl timeline: note: rank {rank.rank}'s trace ends early: the job was cut "
                "short, or it is still running.",
                file=sys.stderr,
            )
    print("\n".join(_summary(ranks, analyses, overlap_analysis.lags(analyses))))
    try:
        count = chrome_trace.write(output, ranks)
    except OSError as error:
        print(
            f"easyddl timeline: error: {output} cannot be written: {error.strerror}. Name another "
            "file with `--output FILE`.",
            file=sys.stderr,
        )
        return 1
    print(f"\n{output}: {count} events. Open it at https://ui.perfetto.dev.")
    return 0


def _summary(ranks, analyses, lags):
    error = max(rank.clock.error for rank in ranks) / 1000
    clocks = f", clocks aligned to within {error:.1f} us" if len(ranks) > 1 else ""
    yield f"{len(ranks)} ranks{clocks}" if len(ranks) != 1 else "1 rank"
    most = max(range(len(ranks)), key=lambda rank: analyses[rank].others)
    yield (
        f"Collectives other than gradients: up to {analyses[most].others / 1e9:.3f} s in total "
        f"(rank {most})."
    )
    if not any(analysis.steps for analysis in analyses):
        yield "Gradients: none were reduced after the first step, which is left out."
        return
    yield "Gradients, in milliseconds per step, without the first step:"
    yield ""
    rows = [["rank", "steps", "step", "communication", "exposed", "hidden", "hidden %", "lag",
             "last in", "host"]]  # fmt: skip
    rows += map(_row, ranks, analyses, lags)
    yield from text_table.lines(rows, left=[len(rows[0]) - 1])
    yield ""
    yield _slowest(ranks, lags)
    yield from _advice(ranks, analyses, lags)


def _row(rank, analysis, lag):
    if not analysis.steps:
        return [str(rank.rank), "0", *[""] * 7, rank.host]
    step = "-" if analysis.step_time is None else f"{analysis.step_time / 1e6:.3f}"
    times = (analysis.communication, analysis.exposed, analysis.hidden)
    share = 100 * analysis.hidden / analysis.communication if analysis.communication else 0
    return [
        *(str(rank.rank), str(analysis.steps), step),
        *(f"{time / analysis.steps / 1e6:.3f}" for time in times),
        *(f"{share:.1f}", f"{lag.mean / 1e6:.3f}", str(lag.last), rank.host),
    ]


def _advice(ranks, analyses, lags):
    """Yields advice if communication between hosts limits the steps."""
    if len({rank.host for rank in ranks}) == 1 or any(each.in_16_bits for each in analyses):
        return
    # Without the wait for slower ranks.
    shares = [
        (analysis.exposed / analysis.steps - lag.wait) / analysis.step_time
        for analysis, lag in zip(analyses, lags, strict=True)
        if analysis.steps and analysis.step_time
    ]
    exposed = min(shares, default=0)
    if exposed >= _MUCH:
        yield (
            f"{100 * exposed:.0f} % of a step is communication that no computation hides. "
            f"{gain_of_16_bits(exposed)}."
        )


def gain_of_16_bits(exposed):
    """Returns the part of a sentence that names `wire_dtype` and the most that it gains.

    Args:
        exposed: Float. The share of a step that is communication which no computation hides.
    """
    return (
        '`DDLCallback(wire_dtype="bfloat16")` halves the bytes of float32 gradients between hosts, '
        f"and shortens a step by up to {50 * exposed:.0f} %"
    )


def _slowest(ranks, lags):
    if not lags[0].steps:
        return "No step was completed by all ranks."
    slowest = max(range(len(lags)), key=lambda rank: (lags[rank].mean, lags[rank].last))
    lag = lags[slowest]
    return (
        f"The slowest is rank {slowest} on {ranks[slowest].host}: its backward passes end "
        f"{lag.mean / 1e6:.3f} ms after the first rank's on average, and last of all ranks' in "
        f"{lag.last} of {lag.steps} steps."
    )
