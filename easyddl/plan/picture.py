"""Draws a network as SVG: the hosts in the order of a plan, its groups, the bytes of each link."""

import statistics
from xml.sax.saxutils import escape

from easyddl.plan import cost

_INK, _PAPER, _FILL, _GROUP, _LINE, _FULLEST = (
    "#1b2733", "#ffffff", "#eef2f6", "#bfe3d0", "#8a97a3", "#c2410c",
)  # fmt: skip
_COLUMN, _ROW, _MARGIN, _BOX_WIDTH, _BOX_HEIGHT = 150, 110, 24, 92, 34
_CAPTION = "Bytes in each direction. Red: the links that are busy for the longest time."
_TITLE, _BAND = 72, 26  # heights of the title, and of a level of groups below the hosts


def draw(graph, nest, names, link_bytes, title, size_text):
    """Returns the lines of the picture.

    Args:
        graph: `Graph`.
        nest: A nest of hosts.
        names: Dictionary. The name of each group but the outermost.
        link_bytes: Dictionary. The bytes that each link carries, by its ends in their direction.
        title: String.
        size_text: Function of a number of bytes that returns a text.
    """
    hosts = cost.hosts_of(nest)
    layers = _layers(graph, hosts)
    columns = max(4, *map(len, layers))  # the caption needs four
    places = _places(graph, layers, columns)
    bands = cost.depth(nest) - 1
    width = 2 * _MARGIN + _COLUMN * columns
    bottom = _TITLE + _ROW * (len(layers) - 1) + _BOX_HEIGHT + _MARGIN
    height = bottom + _BAND * bands + 2 * _MARGIN
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        f'width="{width}" font-family="system-ui, sans-serif" font-size="13" fill="{_INK}" '
        'text-anchor="middle">'
    )
    yield f"<title>{escape(title)}</title>"
    yield f'<rect width="{width}" height="{height}" rx="10" fill="{_PAPER}"/>'
    yield f'<text x="{width / 2:g}" y="28" font-size="16">{escape(title)}</text>'
    for level in range(bands):
        for group in cost.groups_at(nest, level):
            x = [places[host][0] for host in cost.hosts_of(group)]
            yield from _band(min(x), max(x), bottom + _BAND * level, names[group])
    yield from _links(graph, places, link_bytes, size_text)
    yield f'<text x="{width / 2:g}" y="{height - 12}">{_CAPTION}</text>'
    for name, (x, y) in places.items():
        yield from _node(name, x, y, _PAPER if name in hosts else _FILL)
    yield "</svg>"


def _layers(graph, hosts):
    """Returns the nodes by their distance from the nearest host: first the hosts, then switches."""
    layers, seen = [list(hosts)], set(hosts)
    while layers[-1]:
        above = [other for node in layers[-1] for other in graph.neighbors[node]]
        layers.append([name for name in dict.fromkeys(above) if name not in seen | {*graph.hosts}])
        seen.update(layers[-1])
    return layers[:-1]


def _places(graph, layers, columns):
    """Returns the middles of the boxes: hosts side by side, and switches above what they join."""
    places, first = {}, (columns - len(layers[0])) / 2
    for index, host in enumerate(layers[0]):
        y = _TITLE + _ROW * (len(layers) - 1) + _BOX_HEIGHT / 2
        places[host] = (_MARGIN + _COLUMN * (first + index + 0.5), y)
    for number, layer in enumerate(layers[1:], 1):
        y = _TITLE + _ROW * (len(layers) - 1 - number) + _BOX_HEIGHT / 2
        wanted = {
            name: statistics.mean(
                places[other][0] for other in graph.neighbors[name] if other in places
            )
            for name in layer
        }
        ordered = sorted(layer, key=wanted.get)
        left, right = _MARGIN - _COLUMN / 2, _MARGIN + _COLUMN * (columns + 0.5)
        for name in ordered:  # move it right off its left neighbor, then left off its right one
            left = wanted[name] = max(wanted[name], left + _COLUMN)
        for name in reversed(ordered):
            right = wanted[name] = min(wanted[name], right - _COLUMN)
        places.update({name: (wanted[name], y) for name in layer})
    return places


def _band(first, last, y, name):
    left, width = first - _BOX_WIDTH / 2, last - first + _BOX_WIDTH
    yield (
        f'<rect x="{left:g}" y="{y - 14:g}" width="{width:g}" height="20" rx="6" fill="{_GROUP}"/>'
    )
    yield f'<text x="{(first + last) / 2:g}" y="{y:g}">{escape(name)}</text>'


def _node(name, x, y, fill):
    yield (
        f'<rect x="{x - _BOX_WIDTH / 2:g}" y="{y - _BOX_HEIGHT / 2:g}" width="{_BOX_WIDTH}" '
        f'height="{_BOX_HEIGHT}" rx="8" fill="{fill}" stroke="{_INK}" stroke-width="1.5"/>'
    )
    yield f'<text x="{x:g}" y="{y + 5:g}">{escape(name)}</text>'


def _links(graph, places, link_bytes, size_text):
    """Yields the links. A wide line is a link that is busy for long; the busiest are in red."""
    seconds = {
        link.ends: max(link_bytes.get(ends, 0.0) for ends in (link.ends, link.ends[::-1]))
        / link.rate
        for link in graph.links
        if places.keys() >= {*link.ends}
    }
    longest = max(seconds.values(), default=0.0) or 1.0
    for (a, b), each in seconds.items():
        low, high = sorted((a, b), key=lambda name: -places[name][1])
        (x, y), (to_x, to_y) = places[low], places[high]
        color = _FULLEST if each > 0.99 * longest else _LINE
        # Nodes of one layer are joined by an arc, which passes above those between them.
        lift = _ROW / 2 if y == to_y else 0
        bend = f"{(x + to_x) / 2:g} {(y + to_y) / 2 - lift:g}"
        look = f'stroke="{color}" stroke-width="{1.5 + 5 * each / longest:.2g}"'
        yield f'<path d="M{x:g} {y:g} Q{bend} {to_x:g} {to_y:g}" fill="none" {look}/>'
        up, down = link_bytes.get((low, high), 0.0), link_bytes.get((high, low), 0.0)
        # Near the lower end, where the links of a switch do not overlap.
        share = 0.5 if lift else 0.3
        word_x, word_y = x + share * (to_x - x), y + share * (to_y - y) - lift / 2
        words = [size_text(up)] if size_text(up) == size_text(down) else [
            f"{size_text(up)} up", f"{size_text(down)} down"
        ]  # fmt: skip
        for line, word in enumerate(words):
            yield (
                f'<text x="{word_x:g}" y="{word_y + 5 + 16 * line:g}" stroke="{_PAPER}" '
                f'stroke-width="4" paint-order="stroke">{word}</text>'
            )
