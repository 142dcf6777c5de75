"""Private names of Keras are used in easyddl/compat alone.

The rule can be decided from the source. Outside of compat/ nothing imports `keras.src`; and no
private attribute (`x._name`) is one of Keras that is listed in compat/, or one that neither easyddl
nor a library named below defines.
"""

import ast
import pathlib
import re

import pytest

import easyddl
from easyddl.compat import check, keras_callback, keras_layer, keras_metric, keras_optimizer

ROOT = pathlib.Path(easyddl.__file__).parent
FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent.name != "compat"]

OF_KERAS = {name.name for name in check.NAMES if name.name.startswith("_")}

# Private names of other libraries, whose backends or kinds of data are the place for them.
OF_OTHERS = {
    "_fields": "named tuples, documented",
    "_replace": "named tuples, documented",
    "_current_frames": "sys, documented",
    "_run_exitfuncs": "atexit, which multiprocessing calls too",
    "_add_control_input": "TensorFlow's operations",
    "_filename": "TensorFlow's datasets",
    "_functions": "TensorFlow's datasets",
    "_inputs": "TensorFlow's datasets",
    "_seed": "TensorFlow's datasets",
    "_seed2": "TensorFlow's datasets",
    "_tensors": "TensorFlow's datasets",
    "_rng": "TensorFlow's eager context",
    "_trace": "JAX's tracers",
    "_version": "PyTorch's tensors",
    "_utils": "PyTorch's loaders",
    "_non_persistent_buffers_set": "PyTorch's modules",
    "_data_source": "Grain's loaders",
    "_operations": "Grain's loaders",
    "_parent": "Grain's datasets",
    "_read_options": "Grain's loaders",
    "_sampler": "Grain's loaders",
    "_shard_options": "Grain's loaders",
}

# What a class derives from, in words of its bases, and the names that it inherits.
INHERITED = {
    "callback": keras_callback.NAMES,
    "checkpoint": keras_callback.NAMES,
    "layer": keras_layer.NAMES,
    "normalization": keras_layer.NAMES,
    "metric": keras_metric.NAMES,
    "optimizer": keras_optimizer.NAMES,
}


def is_private(name):
    return re.fullmatch(r"_[A-Za-z]\w*", name) is not None


def is_own(node):
    """Whether an attribute is one of `self` or `cls`."""
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def defined_in(tree):
    """The private names that a file defines: functions, classes, variables, attributes of self."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            yield node.attr


DEFINED = {name for path in FILES for name in defined_in(ast.parse(path.read_text()))}


def imports_insides(node):
    if isinstance(node, ast.Import):
        return any(alias.name.startswith("keras.src") for alias in node.names)
    if isinstance(node, ast.ImportFrom):
        return any(f"{node.module}.{each.name}".startswith("keras.src") for each in node.names)
    return isinstance(node, ast.Attribute) and ast.unparse(node) == "keras.src"


def is_of_keras(node):
    """Whether a node reads or sets a private attribute of what is no part of easyddl."""
    if isinstance(node, ast.Constant):
        return node.value in OF_KERAS  # for getattr, or a replacement
    if not isinstance(node, ast.Attribute) or is_own(node) or not is_private(node.attr):
        return False
    return node.attr in OF_KERAS or node.attr not in DEFINED | set(OF_OTHERS)


def inherited_in(cls):
    """The nodes in a class that use or override what it inherits of Keras."""
    bases = " ".join(map(ast.unparse, cls.bases)).lower()
    names = {name.name for word, each in INHERITED.items() if word in bases for name in each}
    for node in ast.walk(cls):
        name = getattr(node, "attr", None) or getattr(node, "name", None)
        if name in names and is_private(name):
            yield node


def found_in(tree):
    for node in ast.walk(tree):
        if imports_insides(node) or is_of_keras(node):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from inherited_in(node)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_private_name_of_keras(path):
    found = [
        f"line {node.lineno}: {ast.unparse(node)}" for node in found_in(ast.parse(path.read_text()))
    ]
    assert not found, f"use a function of easyddl/compat in {path}: {found}"
