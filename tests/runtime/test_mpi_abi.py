import types

import pytest

from easyddl.runtime import mpi_abi, mpi_library

STANDARD = "MPICH Version: 5.0.2, ABI: standard"


class Library:
    """What `mpi4py.MPI` tells of the library that it has loaded."""

    def __init__(self, world, version):
        self.COMM_WORLD = types.SimpleNamespace(handle=world)
        self._version = version

    def Get_library_version(self):
        return self._version


@pytest.mark.parametrize(
    ("world", "version", "abi"),
    [
        (0x44000000, "MPICH Version: 4.0.3", "mpich"),
        (0x44000000, "Intel(R) MPI Library 2021.17", "mpich"),
        (0x101, STANDARD, "abi"),
        (0x7F3A1C5E8000, "Open MPI v4.1.8, package: Open MPI", "openmpi"),
        (0x7F3A1C5E8000, "Some MPI 1.0", "other"),
        (0x1, "HPE MPT 2.28", "other"),
    ],
)
def test_abi_of_a_library(world, version, abi):
    assert mpi_abi.of_library(Library(world, version)) == abi


def test_a_handle_is_unsigned():
    assert mpi_abi.world_handle(Library(-1, "")) == 2**64 - 1


def test_translations_of_an_installation(tmp_path):
    assert mpi_abi.translations(tmp_path) == {}
    for name in ("_mpi_openmpi.so", "_mpi_mpich.so", "_mpi_unknown.so", "_core.so"):
        (tmp_path / name).touch()
    assert mpi_abi.translations(tmp_path) == {
        "mpich": tmp_path / "_mpi_mpich.so",
        "openmpi": tmp_path / "_mpi_openmpi.so",
    }


def test_an_mpi_that_this_installation_does_not_serve():
    served = {"mpich": "a", "openmpi": "b"}
    assert mpi_library.translation_for("openmpi", served, "Open MPI v5.0.11") == "b"
    with pytest.raises(RuntimeError, match="Build easyddl from its sources") as caught:
        mpi_library.translation_for("other", served, "HPE MPT 2.28\nmore\0")
    text = str(caught.value)
    assert "supports MPICH" in text and "; Open MPI, but" in text
    assert "(HPE MPT 2.28)" in text and "MPICXX" in text
