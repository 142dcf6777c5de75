import json
import pathlib

import mpi
import pytest

from easyddl.runtime import mpi_library

JOB = pathlib.Path(__file__).with_name("world_job.py")
# What libraries call themselves, with their MPI_COMM_WORLD.
MPICH = ("MPICH Version:      5.0.2\nMPICH Release date: some day\n", 0x44000000)
OLD_MPICH = (MPICH[0].replace("5.0.2", "4.1.0"), 0x44000000)
OPEN_MPI = ("Open MPI v5.0.11, package: Open MPI u@localhost Distribution, ident: 5.0.11", 0x7F0042)
OTHER_OPEN_MPI = (OPEN_MPI[0], 0x7F0052)  # the same version, loaded twice


def run(tmp_path, *lines, **env):
    """Runs a script of these lines without mpirun."""
    script = tmp_path / "script.py"
    script.write_text("\n".join(lines))
    return mpi.run(1, script, env={**mpi.ANY_BACKEND, **env}, ranks_by_mpirun=False)


@pytest.mark.full
def test_every_check_of_the_world_in_a_world_of_one_without_mpirun(tmp_path):
    env = {"EASYDDL_TEST_RESULTS": str(tmp_path)}
    done = mpi.run(1, JOB, env=env, ranks_by_mpirun=False)
    results = json.loads((tmp_path / "0.json").read_text())
    assert set(results.values()) == {"ok"}, done.stdout
    assert "check_the_end" in results and len(results) > 60
    assert done.returncode == 0, done.stdout


def test_a_world_of_one(tmp_path):
    done = run(
        tmp_path,
        "import easyddl as ddl",
        "assert (ddl.rank(), ddl.size(), ddl.is_root()) == (0, 1, True)",
        "assert (ddl.local_rank(), ddl.local_size()) == (0, 1)",
        "assert (ddl.node_rank(), ddl.num_nodes()) == (0, 1)",
        "ddl.init(), ddl.barrier()",
        "import sys; from easyddl.runtime import console",
        "sys.stderr.close(), console.say('nobody reads this')",
        "raise SystemExit(7)",
    )
    assert done.returncode == 7, done.stdout


@pytest.mark.parametrize("one", [MPICH, OLD_MPICH, OPEN_MPI])
def test_one_mpi(one):
    mpi_library.check_same_mpi(one, one, "MPICH 5.0.2")
    mpi_library.check_same_mpi((one[0] + "\0", one[1]), (one[0].rstrip(), one[1]), "MPICH 5.0.2")


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(MPICH, OPEN_MPI), (OPEN_MPI, MPICH), (OPEN_MPI, OTHER_OPEN_MPI), (MPICH, OLD_MPICH)],
)
def test_two_mpis(ours, theirs):
    with pytest.raises(RuntimeError, match="uses two MPI libraries") as caught:
        mpi_library.check_same_mpi(ours, theirs, "MPICH 5.0.2")
    text = str(caught.value)
    assert "built with MPICH 5.0.2" in text
    assert ours[0].splitlines()[0] in text and theirs[0].splitlines()[0] in text
    assert "pip install --force-reinstall" in text and "MPICXX" in text


@pytest.mark.full
def test_a_launcher_of_another_mpi(tmp_path):
    # Its ranks are told of each other, but this MPI does not hear it.
    other = "PMI_SIZE" if mpi.is_open_mpi() else "OMPI_COMM_WORLD_SIZE"
    done = run(tmp_path, "import easyddl as ddl", "ddl.rank()", "print('went on')", **{other: "4"})
    assert done.returncode != 0
    found = "MPI counts 1" if mpi.is_open_mpi() else "it is Open MPI's"
    assert f"The launcher started 4 ranks, but {found}" in done.stdout
    assert "its bin/mpirun" in done.stdout and "went on" not in done.stdout


@pytest.mark.full
def test_mpi_without_threads(tmp_path):
    done = run(
        tmp_path,
        "import mpi4py",
        "mpi4py.rc.thread_level = 'single'",
        "from mpi4py import MPI",
        "import easyddl as ddl",
        "if MPI.Query_thread() < MPI.THREAD_MULTIPLE:",
        "    try:",
        "        ddl.rank()",
        "    except RuntimeError as error:",
        "        assert 'without MPI_THREAD_MULTIPLE' in str(error), error",
        "        assert 'mpi4py.rc.thread_level' in str(error), error",
        "    else:",
        "        raise AssertionError('no error')",
    )
    assert done.returncode == 0, done.stdout


def test_what_the_start_must_do_is_done_after_it_too(tmp_path):
    """As when a script imports Keras after its first use of easyddl."""
    done = run(
        tmp_path,
        "import easyddl as ddl",
        "from easyddl.runtime import world",
        "sizes = []",
        "world.at_start(lambda world: sizes.append(world.size))",
        "assert sizes == []",
        "ddl.init()",
        "world.at_start(lambda world: sizes.append(10 * world.size))",
        "assert sizes == [1, 10], sizes",
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.full
def test_a_forked_child_of_a_world_of_one(tmp_path):
    done = run(
        tmp_path,
        "import os, warnings",
        "import easyddl as ddl",
        "warnings.simplefilter('ignore')",
        "ddl.init()",
        "child = os.fork()",
        "if child == 0:",
        "    try:",
        "        ddl.rank()",
        "    except RuntimeError as error:",
        "        os._exit(0 if 'worker' in str(error) else 1)",
        "    os._exit(2)",
        "raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
    )
    assert done.returncode == 0, done.stdout


def test_sources_that_python_imports_in_place_of_the_package_are_named(tmp_path):
    package = tmp_path / "easyddl"
    package.mkdir()
    (package / "_core.pyi").touch()
    mpi_library.check_place(package)  # as it is installed
    (tmp_path / "setup.cfg").touch()
    with pytest.raises(RuntimeError, match="Change to another directory") as caught:
        mpi_library.check_place(package)
    assert f"from its sources in {tmp_path}, where" in str(caught.value)
    (package / "_core.so").touch()  # as they are built in place
    mpi_library.check_place(package)
