"""Makes the notebooks of this folder from their sources, and executes them.

    python tutorials/notebooks/make.py                   # all of them
    python tutorials/notebooks/make.py 01_first_four_lines

The source of a notebook is the .py file of the same name, in jupytext's percent format. Edit that
file, and then run this program. It writes the .ipynb file with the outputs of all cells.
"""

import argparse
import pathlib
import re
import time

import jupytext
import nbclient

FOLDER = pathlib.Path(__file__).parent
CELL_LIMIT = 300  # seconds of one cell

# What TensorFlow and its libraries print when they are loaded, behind the number of the rank.
STARTUP = re.compile(
    r"(\[\d+\] )?(WARNING: All log messages before absl|To enable the following|[IWE]\d{4} )"
)


def sources():
    """The sources of all notebooks, in their order."""
    return sorted(FOLDER.glob("[0-9][0-9]_*.py"))


def notebook(source):
    """The notebook of a source, without outputs."""
    made = jupytext.read(source)
    made.metadata = {
        "kernelspec": made.metadata["kernelspec"],
        "language_info": {"name": "python"},
    }
    for number, cell in enumerate(made.cells):
        cell.id = f"cell-{number}"  # jupytext draws random ones, which would change every time
    return made


def clean(made):
    """Removes what tells of this computer only: times of cells, and TensorFlow's messages."""
    for cell in made.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                lines = output.text.splitlines(keepends=True)
                output.text = "".join(line for line in lines if not STARTUP.match(line))
        if "outputs" in cell:
            cell.outputs = [each for each in cell.outputs if each.get("text") != ""]


def make(source):
    """Executes the notebook of a source, and writes it beside the source."""
    made = notebook(source)
    client = nbclient.NotebookClient(
        made, timeout=CELL_LIMIT, resources={"metadata": {"path": str(source.parent)}}
    )
    client.execute()
    made.metadata = notebook(source).metadata
    clean(made)
    jupytext.write(made, source.with_suffix(".ipynb"), fmt="ipynb")


def main():
    parser = argparse.ArgumentParser(description="Execute notebooks and write their .ipynb files.")
    parser.add_argument("names", nargs="*", help="the notebooks; by default all of them")
    names = parser.parse_args().names
    chosen = [FOLDER / f"{pathlib.Path(name).stem}.py" for name in names] or sources()
    for source in chosen:
        began = time.monotonic()
        make(source)
        print(f"{source.stem}: {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
