"""Settings of Sphinx, which makes a site of the guides, the notebooks and the docstrings.

    python -m sphinx -W --keep-going -c tutorials/site tutorials build/site

The sources are in `tutorials/`. `docstrings.py` prepares the docstrings, which are Markdown,
`mathml.py` writes the formulas, and `public_names.py` writes `ddl.` before names. `static/` has
what browsers load.
"""

import importlib.metadata
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import docstrings
import public_names

import easyddl

easyddl.DDLCallback  # noqa: B018 - imports what the docstrings are read from

project = "easyddl"
version = release = importlib.metadata.version("easyddl")
copyright = "the authors of easyddl"

extensions = [
    "mathml",
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["clusters", "migration", "plain", "site", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_math_renderer = "mathml"
pygments_style = "default"
pygments_dark_style = "monokai"
html_title = f"easyddl {version}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_search_scorer = str(pathlib.Path(__file__).with_name("static") / "scorer.js")
viewcode_line_numbers = True
html_show_copyright = False
html_show_sphinx = False

# The outputs in the notebooks are shown as they are: `notebooks/make.py` has made them.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # as GitHub has them
suppress_warnings = ["myst.header"]  # a notebook's headings may begin below its title

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say what the types are
napoleon_numpy_docstring = False
add_module_names = False


def adapt_links(app, name, source):
    """Adapts the links that lead to something else on GitHub.

    The first page includes the README. A folder of scripts has no page.
    """
    text = source[0].replace("](../README.md", "](index.md")
    text = text.replace("](../../README.md", "](../index.md")
    source[0] = re.sub(r"\[([^]]+)\]\((?:plain|migration)/\)", r"`\1`", text)


def setup(app):
    """Connects what changes the sources."""
    app.connect("source-read", adapt_links)
    app.connect("autodoc-process-docstring", docstrings.to_restructured_text, priority=1)
    app.connect("object-description-transform", public_names.add_prefix)
