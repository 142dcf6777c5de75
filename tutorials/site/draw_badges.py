"""Draws the badges of the README from setup.cfg.

    python tutorials/site/draw_badges.py tutorials/badges

It needs no package besides Python's own. `tests/tutorials/test_pictures.py` checks that the files
in the repository are what this script writes.
"""

import configparser
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).parents[2]
HEIGHT, CHARACTER, PADDING = 20, 6.8, 8


def facts():
    """The label and the value of each badge, by the name of its file."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    (python,) = re.findall(r"^>=([\d.]+)$", setup["options"]["python_requires"])
    (keras,) = re.findall(r"^keras>=([\d.]+)$", setup["options"]["install_requires"], re.MULTILINE)
    return {
        "python": ("Python", f"{python} or later"),
        "keras": ("Keras", f"{keras} or later"),
        "license": ("License", setup["metadata"]["license"]),
    }


def badge(label, value):
    left, right = (2 * PADDING + CHARACTER * len(words) for words in (label, value))
    width = round(left + right)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
            'role="img" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" fill="#fff">',
            f"<title>{label}: {value}</title>",
            f'<rect width="{width}" height="{HEIGHT}" rx="3" fill="#1f5f99"/>',
            f'<path d="M3 0 H{left:g} V{HEIGHT} H3 a3 3 0 0 1 -3 -3 V3 a3 3 0 0 1 3 -3" '
            'fill="#444"/>',
            f'<text x="{left / 2:g}" y="14" text-anchor="middle">{label}</text>',
            f'<text x="{(left + width) / 2:g}" y="14" text-anchor="middle">{value}</text>',
            "</svg>\n",
        )
    )


if __name__ == "__main__":
    for name, fact in facts().items():
        (pathlib.Path(sys.argv[1]) / f"{name}.svg").write_text(badge(*fact))
