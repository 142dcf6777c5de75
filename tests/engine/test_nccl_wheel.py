"""The real NCCL of the package nvidia-nccl-cu12, on a host without a driver."""

import importlib.metadata
import importlib.util
import re

import pytest

from easyddl.runtime import mpi_library

try:
    FOUND = importlib.util.find_spec("nvidia.nccl")
except ModuleNotFoundError:
    FOUND = None

pytestmark = pytest.mark.skipif(FOUND is None, reason="needs the extra easyddl[cuda]")


@pytest.fixture
def core():
    engine = mpi_library.load_core(mpi_library.load_mpi())
    engine.set_nccl_folders(mpi_library.nccl_folders())
    return engine


def test_nccl_has_every_function_and_tells_its_version(core):
    version, path = core.nccl_version_and_path()
    assert path.endswith("nvidia/nccl/lib/libnccl.so.2")
    installed = importlib.metadata.version("nvidia-nccl-cu12")
    assert version == re.match(r"\d+\.\d+\.\d+", installed)[0]


def test_what_is_missing_is_the_driver(core):
    try:
        core.gpu_versions()
    except core.Error as error:
        assert "the CUDA driver (libcuda.so.1) cannot be opened" in str(error)
        assert "Install NVIDIA's driver" in str(error)
    else:
        pytest.skip("has a driver")
