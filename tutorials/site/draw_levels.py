"""Draws the picture of the README: ranks, hosts, and the levels of a reduction.

    python tutorials/site/draw_levels.py > tutorials/levels.svg

It needs no package besides Python's own. `tests/tutorials/test_pictures.py` checks that the file in
the repository is what this script prints.
"""

HOSTS = 2
RANKS = 4  # on each host

WIDTH, HEIGHT = 800, 400
MARGIN, GAP = 16, 24
HOST_WIDTH = (WIDTH - 2 * MARGIN - GAP * (HOSTS - 1)) / HOSTS
RANK_WIDTH, RANK_GAP = 80, 8

INK, PAPER = "#1b2733", "#ffffff"
HOST, RANK, MEMORY, NETWORK = "#eef2f6", "#ffffff", "#bfe3d0", "#ffdca8"

TITLE = f"{HOSTS} hosts with {RANKS} ranks each"
DESCRIPTION = (
    "Each rank holds the whole model and its own shard of the data. Gradients are added up through "
    "the memory of a host, then between the hosts by MPI, and the mean goes back to all ranks."
)


def box(x, y, width, height, fill, radius=8):
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius}" '
        f'fill="{fill}" stroke="{INK}" stroke-width="1.5"/>'
    )


def text(x, y, words, size=15, anchor="middle", weight="normal"):
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{words}</text>'
    )


def arrow(x, top, bottom):
    """Draws a line with a head at both ends."""
    return (
        f'<path d="M{x:g} {top:g} V{bottom:g}" stroke="{INK}" stroke-width="1.5" fill="none" '
        'marker-start="url(#head)" marker-end="url(#head)"/>'
    )


def rank(number, x, y):
    middle = x + RANK_WIDTH / 2
    yield box(x, y, RANK_WIDTH, 84, RANK)
    yield text(middle, y + 24, f"rank {number}", 16, weight="bold")
    yield text(middle, y + 47, "model", 14)
    yield text(middle, y + 68, f"shard {number}", 14)
    yield arrow(middle, y + 90, y + 116)


def host(number, x, y):
    middle = x + HOST_WIDTH / 2
    yield box(x, y, HOST_WIDTH, 220, HOST)
    yield text(middle, y + 26, f"host {number}", 17, weight="bold")
    indent = (HOST_WIDTH - RANKS * RANK_WIDTH - (RANKS - 1) * RANK_GAP) / 2
    for index in range(RANKS):
        left = x + indent + index * (RANK_WIDTH + RANK_GAP)
        yield from rank(number * RANKS + index, left, y + 40)
    yield box(x + indent, y + 160, HOST_WIDTH - 2 * indent, 46, MEMORY)
    yield text(middle, y + 180, "shared memory of the host", 15)
    yield text(middle, y + 198, "(NCCL among its GPUs)", 14)
    yield arrow(middle, y + 226, y + 250)


def picture():
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" fill="{INK}">'
    )
    yield f"<title>{TITLE}</title>"
    yield f"<desc>{DESCRIPTION}</desc>"
    yield (
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        f'markerHeight="7" orient="auto-start-reverse"><path d="M0 0 L8 4 L0 8 z" fill="{INK}"/>'
        "</marker></defs>"
    )
    yield f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" fill="{PAPER}"/>'
    for number in range(HOSTS):
        yield from host(number, MARGIN + number * (HOST_WIDTH + GAP), MARGIN)
    yield box(MARGIN, 270, WIDTH - 2 * MARGIN, 40, NETWORK)
    yield text(WIDTH / 2, 295, "MPI between the hosts", 16)
    steps = (
        "1. The ranks of a host add up their gradients: each rank gets the sum of one part.",
        "2. The hosts exchange these parts, and add them up.",
        "3. The ranks of a host share the result: all ranks have the mean.",
    )
    for index, words in enumerate(steps):
        yield text(MARGIN + 4, 338 + 22 * index, words, 16, anchor="start")
    yield "</svg>"


if __name__ == "__main__":
    print("\n".join(picture()))
