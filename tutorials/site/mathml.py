"""Writes formulas as MathML, which browsers show by themselves.

The usual renderer of Sphinx loads MathJax from the network.
"""

from docutils import nodes
from latex2mathml.converter import convert


def write_inline(translator, node):
    """Writes a formula within a line."""
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def write_block(translator, node):
    """Writes a formula that stands by itself."""
    formula = convert(node.astext(), display="block")
    translator.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def setup(app):
    """Offers the renderer under the name `mathml`."""
    app.add_html_math_renderer("mathml", (write_inline, None), (write_block, None))
