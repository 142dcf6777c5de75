"""Run under mpirun by test_memory.py: how much memory a reduction takes, at its most.

Prints, on the root, the largest of all ranks: by how many bytes more a step comes to hold at a
time with a reduction than without. Shared memory counts whole on each rank.
"""

import pathlib
import sys

import keras
import numpy as np
import tensorflow as tf
from mpi4py import MPI

import easyddl as ddl
from easyddl.reducer.gradient_reducer import GradientReducer

PARTS = 10


def most_bytes_of(act):
    """The most that this process holds while it acts."""
    # It makes the peak what is resident now: proc_pid_clear_refs(5).
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    act()
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def steps_of(variables, mean):
    """Three steps that subtract the mean of gradients from variables."""

    @tf.function
    def step(scale):
        # All at once, as after a backward pass.
        made = [tf.fill(v.shape, scale * (i + 1.0)) for i, v in enumerate(variables)]
        with tf.control_dependencies(made):
            made = [tf.identity(gradient) for gradient in made]
        for variable, gradient in zip(variables, mean(made, variables), strict=True):
            variable.value.assign_sub(gradient)

    def act():
        for _ in range(3):
            step(tf.constant(ddl.rank() + 1.0))

    return act


def main(size):
    count = size // 4 // PARTS
    variables = [keras.Variable(np.zeros(count, "float32"), name=f"v{i}") for i in range(PARTS)]
    without = most_bytes_of(steps_of(variables, lambda made, _: made))
    averager = GradientReducer()
    with_one = most_bytes_of(steps_of(variables, averager.mean))
    for i, variable in enumerate(variables):
        want = -3 * (i + 1) * (ddl.rank() + 1 + (ddl.size() + 1) / 2)
        assert variable.numpy()[0] == variable.numpy()[-1] == want
    most = MPI.COMM_WORLD.reduce(with_one - without, MPI.MAX)
    if ddl.is_root():
        print(f"most: {most}")


ddl.init()
main(int(sys.argv[1]))
