"""The table in tutorials/keras.md that counts the checks of each subject on each backend.

This prints the rows:

    PYTHONPATH=tests/support python tests/tutorials/test_backend_table.py
"""

import pathlib
import re

import matrix

PAGE = pathlib.Path(__file__).parents[2] / "tutorials" / "keras.md"
BACKENDS = ("tensorflow", "jax", "torch")
SUBJECTS = {
    "equality": "weights equal to those of one process",
    "fit": "`fit` and its callbacks",
    "fidelity": "state of layers, random numbers, kinds of losses",
    "metrics": "metrics",
    "uneven": "ranks with different numbers of batches",
    "keras": "optimizers, callbacks and models of Keras",
    "checkpoint": "backups and restarts",
    "model_files": "saved models",
    "prediction": "`ddl.predict`",
    "sync_batch_norm": "`SyncBatchNormalization`",
    "comparison": "what must be the same on all ranks",
    "epoch_logs": "logs of callbacks",
    "data_in_fit": "kinds of data in `fit`",
    "progress": "`ProgressCallback`",
    "sparse": "sparse gradients",
    "shared_rows": "rows that all samples share",
    "jax": "JAX alone",
    "torch": "PyTorch alone",
    "torch_buffers": "buffers of PyTorch's modules",
}


def row(name):
    """The row of a subject: how many of its checks some job runs on each backend."""
    of_backend = {backend: set() for backend in BACKENDS}
    for job in matrix.JOBS.values():
        found = (check for check in job.checks if check.partition(":")[0] == name)
        of_backend[job.backend].update(found)
    counts = " | ".join(str(len(checks)) if checks else "–" for checks in of_backend.values())
    return f"| {SUBJECTS[name]} (`{name}_checks.py`) | {counts} |"


def test_the_table_counts_the_checks_of_the_matrix():
    pattern = r"^\| [^|]*\(`\w+_checks.py`\)(?: \| (?:\d+|–)){3} \|$"
    rows = re.findall(pattern, PAGE.read_text(), re.MULTILINE)
    assert rows == [row(name) for name in SUBJECTS]


if __name__ == "__main__":
    print("\n".join(row(name) for name in SUBJECTS))
