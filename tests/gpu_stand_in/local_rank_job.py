"""A job whose launcher tells no rank its place: only MPI knows it."""

# ruff: noqa: E402

import os

from mpi4py import MPI

LAUNCHERS = ("PMI", "MPI_LOCAL", "OMPI_", "SLURM")
for name in [name for name in os.environ if name.startswith(LAUNCHERS)]:
    del os.environ[name]

import jax

import easyddl as ddl

VISIBLE = "jax_cuda_visible_devices"
assert jax.config.read(VISIBLE) == "all"
ddl.init()
assert jax.config.read(VISIBLE) == str(MPI.COMM_WORLD.rank), jax.config.read(VISIBLE)
