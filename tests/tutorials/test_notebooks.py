"""The notebooks agree with their sources, and hold their outputs. CI executes them by nbmake."""

import pathlib

import jupytext
import nbformat
import pytest

ROOT = pathlib.Path(__file__).parents[2]
FOLDER = ROOT / "tutorials" / "notebooks"
SOURCES = sorted(FOLDER.glob("[0-9][0-9]_*.py"))
each_notebook = pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)


def executed(source):
    return nbformat.read(source.with_suffix(".ipynb"), as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


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
