"""What the build decides and says: which MPI it takes, and what it lacks."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

EXT = Path(__file__).parents[2] / "ext"

spec = importlib.util.spec_from_file_location("find_mpicxx", EXT / "cmake" / "find_mpicxx.py")
search = importlib.util.module_from_spec(spec)
spec.loader.exec_module(search)


def executable(path, script="exit 0"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path):
    """An mpicxx in each of the places where the search looks."""
    return {
        place: executable(tmp_path / place / "bin" / "mpicxx")
        for place in ["named", "venv", "system", "wheel"]
    }


def find(places, *, path=("wheel", "system"), prefix="venv", mpicxx=None):
    """Search as pip's build does: the wheel's directory comes first on PATH."""
    environ = {"PATH": os.pathsep.join(str(places[place].parent) for place in path)}
    if mpicxx is not None:
        environ["MPICXX"] = str(mpicxx)
    found = search.find_mpicxx(environ, places[prefix].parents[1], places["wheel"])
    return next(place for place, wrapper in places.items() if wrapper == found)


def test_mpicxx_of_the_environment_variable_comes_first(places):
    assert find(places, mpicxx=places["named"]) == "named"


def test_environment_variable_may_be_a_name_on_path(places):
    executable(places["system"].with_name("mpicxx.other"))
    places["other"] = places["system"].with_name("mpicxx.other")
    assert find(places, mpicxx="mpicxx.other") == "other"


def test_name_in_the_environment_variable_does_not_mean_the_wheel(places):
    assert find(places, mpicxx="mpicxx") == "system"


def test_empty_environment_variable_counts_as_unset(places):
    assert find(places, mpicxx="") == "venv"


def test_environment_of_the_python_that_builds_comes_before_path(places):
    assert find(places) == "venv"


def test_path_comes_before_the_wheel(places):
    places["venv"].unlink()
    assert find(places) == "system"


def test_link_to_the_build_environment_is_left_out_of_path(places, tmp_path):
    places["venv"].unlink()
    (tmp_path / "link").symlink_to(places["wheel"].parent)
    places["link"] = tmp_path / "link" / "mpicxx"
    assert find(places, path=["link", "system"]) == "system"


def test_wheel_comes_last(places):
    places["venv"].unlink()
    places["system"].unlink()
    assert find(places) == "wheel"


def test_wheel_in_the_environment_that_builds_is_taken(places):
    """`pip install --no-build-isolation` into an environment with the mpich wheel."""
    assert find(places, prefix="wheel") == "wheel"


@pytest.mark.parametrize("prefix", ["build-env-x1", "builds-v0/.tmpx1"])
def test_environment_made_only_to_build_in_comes_last(places, tmp_path, prefix):
    """`build` and `uv` make one, with the wheel in it, and put it first on PATH."""
    places["wheel"] = executable(tmp_path / prefix / "bin" / "mpicxx")
    assert find(places, prefix="wheel") == "system"
    places["system"].unlink()
    assert find(places, prefix="wheel") == "wheel"


def test_file_that_is_not_executable_is_passed_over(places):
    places["venv"].chmod(0o644)
    assert find(places) == "system"


def test_a_build_has_the_pip_that_downloads_headers_of_mpis():
    """pip builds in an environment with these packages alone: `.ci/run install` builds so."""
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((EXT.parent / "pyproject.toml").read_text())
    assert "pip" in project["build-system"]["requires"]
    # The plugin for setuptools ignores it.
    settings = project["tool"]["scikit-build"]
    assert not any("requires" in name for each in settings.get("overrides", ()) for name in each)
    assert "requires" not in settings.get("build", {})


def test_without_any_mpi_the_error_says_what_to_install(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"pip install mpich.*libopenmpi-dev.*MPICXX"):
        search.find_mpicxx({"PATH": str(tmp_path)}, tmp_path, None)


def test_missing_wrapper_in_the_environment_variable_is_an_error(places):
    """The user's explicit wish is not overridden, though other wrappers exist."""
    with pytest.raises(FileNotFoundError, match="MPICXX=/nonexistent is not an executable"):
        find(places, mpicxx="/nonexistent")


def configure(build_directory, succeeds=False, **environ):
    """Return the text of a CMake configuration."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    cmake = shutil.which("cmake", path=path)
    if not cmake:
        pytest.skip("needs cmake (it is in the extra easyddl[test])")
    environ = {**os.environ, "PATH": path, **environ}
    command = [cmake, "-S", EXT, "-B", build_directory, f"-DPython_EXECUTABLE={sys.executable}"]
    if shutil.which("ninja", path=path):
        command += ["-G", "Ninja"]
    done = subprocess.run(command, env=environ, text=True, capture_output=True, timeout=60)
    assert (done.returncode == 0) == succeeds, done.stderr
    return done.stderr


@pytest.fixture
def compiler():
    """Skip where there is no C++ compiler: the build then says so before it looks for MPI."""
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    if not any(shutil.which(name) for name in names):
        pytest.skip("needs a C++ compiler")


def test_without_a_compiler_the_build_says_what_to_install(tmp_path):
    sentence = "easyddl needs a C++17 compiler to build: install one (for example `apt-get"
    assert sentence in configure(tmp_path, CXX="/nonexistent")


@pytest.mark.usefixtures("compiler")
def test_missing_wrapper_ends_the_build_in_one_sentence(tmp_path):
    error = configure(tmp_path, MPICXX="/nonexistent")
    assert "easyddl needs an MPI library to build, but MPICXX=/nonexistent is not an" in error


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(
    "script",
    ["echo some complaint >&2; exit 1", "echo c++ -I/nonexistent -lmpi", "echo c++"],
    ids=["fails", "names-no-header", "names-nothing"],
)
def test_broken_wrapper_ends_the_build_in_one_sentence(tmp_path, script):
    wrapper = executable(tmp_path / "mpicxx", script)
    error = configure(tmp_path / "build", MPICXX=str(wrapper))
    assert f"easyddl needs a working MPI library to build, but {wrapper} does not" in error
    if "complaint" in script:
        assert "some complaint" in error


@pytest.mark.full
@pytest.mark.usefixtures("compiler")
def test_an_mpi_at_a_path_with_a_space(tmp_path):
    """The wrapper of the wheel finds its own folder, and prints it without quotation marks."""
    wrapper = search.find_mpicxx(os.environ, Path(sys.prefix), None)
    (tmp_path / "an MPI").symlink_to(wrapper.parents[1])
    mpicxx = tmp_path / "an MPI" / "bin" / wrapper.name
    bindings = pytest.importorskip("pybind11").get_cmake_dir()
    configure(tmp_path / "build", succeeds=True, MPICXX=str(mpicxx), pybind11_DIR=bindings)


def test_binaries_take_their_mpi_from_the_process():
    """A library that they name, or a path, would load a second MPI beside mpi4py's."""
    readelf = shutil.which("readelf")
    if not readelf:
        pytest.skip("needs readelf (binutils)")
    package = importlib.util.find_spec("easyddl")
    built = [
        file
        for place in (package.submodule_search_locations if package else [])
        for file in Path(place).glob("_*.so")
    ]
    if not built:
        pytest.skip("needs easyddl installed, with its extension")
    assert any(file.name.startswith("_mpi_") for file in built)
    for file in built:
        tags = subprocess.run(
            [readelf, "-d", file], text=True, capture_output=True, check=True
        ).stdout
        assert "(NEEDED)" in tags
        assert not re.search(r"NEEDED.*\[libmpi", tags), (file, tags)
        assert not re.search(r"\((RPATH|RUNPATH)\)", tags), (file, tags)
