"""The notebooks agree with their sources, and hold their outputs. CI executes them by nbmake."""

import json
import pathlib
import re
import sys

import jupytext
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tutorials" / "notebooks"
LARGEST = 600_000  # bytes of a notebook with its pictures
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def executed(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_every_notebook_has_a_source():
    assert len(SOURCES) == 10
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == {path.stem for path in SOURCES}


def test_the_list_of_notebooks_is_complete():
    text = (FOLDER / "README.md").read_text()
    assert re.findall(r"\]\((\d\d_\w+)\.ipynb\)", text) == [path.stem for path in SOURCES]


@each_notebook
def test_a_notebook_agrees_with_its_source(source):
    def cells(notebook):
        return [(each.cell_type, each.source, each.metadata.get("tags")) for each in notebook.cells]

    assert cells(executed(source)) == cells(jupytext.read(source)), (
        f"Execute it again: python tutorials/notebooks/make.py {source.stem}"
    )


@each_notebook
def test_all_cells_have_been_executed_in_order(source):
    cells = code_cells(executed(source))
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    kinds = {output.output_type for cell in cells for output in cell.outputs}
    assert "error" not in kinds


@each_notebook
def test_a_notebook_asserts_and_ends_with_an_exercise(source):
    notebook = executed(source)
    titles = re.findall(
        r"^#+ (.+)$",
        "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown"),
        re.MULTILINE,
    )
    assert "Exercise" in titles and "Solution" in titles, titles
    assert sum("assert " in cell.source for cell in code_cells(notebook)) >= 2


@each_notebook
def test_outputs_name_no_place_of_the_computer(source):
    outputs = json.dumps([cell.outputs for cell in code_cells(executed(source))])
    places = [sys.prefix, str(pathlib.Path.home()), str(ROOT)]
    assert [place for place in places if f"{place}/" in outputs] == []


@each_notebook
def test_a_notebook_is_small(source):
    assert source.with_suffix(".ipynb").stat().st_size < LARGEST
