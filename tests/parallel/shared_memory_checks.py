"""The memory that ranks share has no name and no way in from outside."""

import os
import pathlib

import easyddl as ddl


def mappings():
    lines = pathlib.Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "easyddl" in line and ".so" not in line]


def check_memory_is_shared_and_nameless():
    ddl.barrier()
    found = mappings()
    assert found
    for line in found:
        assert "/memfd:easyddl (deleted)" in line and "rw-s" in line, line


def check_no_descriptor_is_left_open():
    ddl.barrier()
    for descriptor in pathlib.Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:
            continue  # that of the listing itself
        assert "easyddl" not in target, target


def check_nothing_is_left_in_shared_memory():
    ddl.barrier()
    names = [path.name for path in pathlib.Path("/dev/shm").iterdir()]
    assert not [name for name in names if "easyddl" in name.lower()]
