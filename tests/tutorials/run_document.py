"""Runs the blocks of a document in their order, as a reader would.

    run_document.py PLAN.json

All blocks of Python share one namespace, that of a script or of a notebook. Each block of a shell
is a process of its own, in the environment that this process was started with, and the plan's.
"""

import json
import os
import pathlib
import runpy
import subprocess
import sys
import time

ENVIRONMENT = dict(os.environ)


def train_script():
    """A script that has trained, for fragments of one: `x_train`, `model`, `mine` and so on."""
    sys.argv = ["train.py"]
    return runpy.run_path("train.py", run_name="__main__")


def image_files():
    """Images on the disk: their `paths` and `labels`, and a `model` for them."""
    import keras
    import tensorflow as tf
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    paths = [f"{number}.png" for number in range(64)]
    for path, image in zip(paths, images, strict=False):
        pixels = tf.cast(15 * image.reshape(8, 8, 1), tf.uint8)
        pathlib.Path(path).write_bytes(tf.io.encode_png(pixels).numpy())
    layers = keras.layers
    model = keras.Sequential([layers.Input((8, 8, 1)), layers.Flatten(), layers.Dense(10)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return {"paths": paths, "labels": labels[:64], "model": model}


SETUPS = {"train.py": train_script, "images": image_files}


def run_python(block, names):
    if block["setup"]:
        names.update(SETUPS[block["setup"]]())
        names["__name__"] = "__main__"  # of which cloudpickle sends functions whole
    # Tracebacks then show the lines of the document.
    code = "\n" * block["line"] + block["code"]
    exec(compile(code, block["path"], "exec"), names)


def run_shell(block, extra):
    line = ["bash", "-euo", "pipefail", "-c", block["code"]]
    done = subprocess.run(line, stdin=subprocess.DEVNULL, env={**ENVIRONMENT, **extra})
    if done.returncode:
        sys.exit(f"{block['path']}:{block['line']}: status {done.returncode} of\n{block['code']}")


def main(plan):
    sys.path[0] = os.getcwd()  # as for a script of a reader's
    names = {"__name__": "__main__"}
    plan = json.loads(pathlib.Path(plan).read_text())
    for block in plan["blocks"]:
        began = time.monotonic()
        print(f"--- {block['path']}:{block['line']}", flush=True)
        if block["language"] == "sh":
            run_shell(block, plan["shell"])
        else:
            run_python(block, names)
        print(f"--- took {time.monotonic() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
