"""Ranks that one process plays one after the other."""

import inspect

import pytest

from easyddl import split_data
from easyddl.collectives import differences
from easyddl.runtime import world


@pytest.fixture
def at(monkeypatch):
    """Returns a function that makes this process one rank of many."""

    def at(rank, size):
        monkeypatch.setattr(world, "rank", lambda: rank)
        monkeypatch.setattr(world, "size", lambda: size)
        monkeypatch.setattr(world, "is_root", lambda: rank == 0)

    return at


@pytest.fixture
def seeds_of_ranks(monkeypatch):
    """Makes a rank that is played compare its seeds with those of the ranks before it."""
    by_rank = []

    def gather(values):
        by_rank.append(values["seeds"])
        return {"seeds": by_rank}

    monkeypatch.setattr(differences, "gather", gather)


@pytest.fixture
def split(at):
    """Returns a function that gives the parts of all ranks, as a list.

    Where what is split is used up or told apart by that, a function makes it for each rank.
    """

    def split(size, *arrays, **options):
        parts = []
        for rank in range(size):
            at(rank, size)
            made = [each() if inspect.isfunction(each) else each for each in arrays]
            parts.append(split_data(*made, **options))
        return parts

    return split
