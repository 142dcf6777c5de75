"""The engine's own tests, which are C++ programs: built here, and run as jobs.

They are built and run as they are, and, with `-m sanitizer`, with sanitizers. The builds stay in
the folder `build`, where the next run builds only what has changed.
"""

import functools
import importlib.util
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import builds
import mpi
import pytest

pytestmark = pytest.mark.mpirun

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "engine"

# Each rank's host, where one machine plays several: few and many on a host, hosts of equal and of
# unequal size, ranks host by host and in turns. Sanitized programs are slow: they run in those
# layouts only that between them take every path.
LAYOUTS = ["a", "a,a", "a,b", "a,a,a", "a,b,a", "a,b,c", "a,b,a,b", "a,a,a,b", ",".join("a" * 8)]
SLOW_LAYOUTS = ["a,a,a", "a,b,a"]
GATE_LAYOUTS = ["a,a,a", "a,b,a"]

# Hosts; the rack of each, if there are several; and the way across, if it is not to be chosen by
# cost. Halving is tried at a power of two of hosts and at others; racks also of unequal size, in
# turns, and in aisles.
WAYS = [
    *[("a,b,c", "", way) for way in ("whole", "halving", "ring")],
    *[("a,b,b,a", "", way) for way in ("halving", "ring")],
    ("a,b,c,d,e", "", "halving"),
    ("a,b,c,d", "x,x,y,y", ""),
    *[("a,b,c,d,e", "x,y,x,y,y", way) for way in ("", "halving")],
    ("a,b,c,d,e,f", "u/x,v/x,u/x,v/x,u/y,u/y", ""),
    (",".join("abcdefgh"), "u/x,u/x,u/y,u/y,v/x,v/x,v/y,v/y", "halving"),
]
# Each way is taken above, and racks of unequal size too: these take both at once, or more of them.
SOAK_WAYS = [
    *[("a,b,c,d,e", "x,y,x,y,y", way) for way in ("whole", "ring")],
    ("a,b,c,d,a,b,c,e", "x,x,y,y,z", ""),
    *[("a,b,c,d,e,f", "u/x,v/x,u/x,v/x,u/y,u/y", way) for way in ("whole", "ring")],
    (",".join("abcdefgh"), "r/u/x,s/u/x,r/u/y,s/u/y,r/v/x,s/v/x,r/v/y,s/v/y", ""),
]
GATE_WAYS = [
    ("a,b,c", "", "ring"),
    ("a,b,c,d,e", "", "halving"),
    ("a,b,c,d,e", "x,y,x,y,y", ""),
    ("a,b,c,d,e,f", "u/x,v/x,u/x,v/x,u/y,u/y", ""),
]
SLOW_WAYS = [("a,b,c", "", "halving"), ("a,b,c", "", "ring"), ("a,b,c,d,e", "x,y,x,y,y", "")]

PLANTED = {
    "address": {
        "read_too_far": "AddressSanitizer: heap-buffer-overflow",
        "overflow": "runtime error: signed integer overflow",
        "leak": "LeakSanitizer: detected memory leaks",
    },
    "thread": {
        "race": "ThreadSanitizer: data race",
        "lock_order": "ThreadSanitizer: lock-order-inversion",
    },
}

REPORT = re.compile(r"(ERROR|WARNING): \w+Sanitizer|Sanitizer:|runtime error:")

ENVIRONMENT = {
    # MPI's libraries keep no frame pointers: the fast way would not find who allocated what.
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:fast_unwind_on_malloc=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "LSAN_OPTIONS": f"suppressions={PROGRAMS / 'suppress_leaks.txt'}:print_suppressions=0",
    # The sleep is for threads that race with the end of the process, which we have none of.
    "TSAN_OPTIONS": f"suppressions={PROGRAMS / 'suppress_races.txt'}"
    ":print_suppressions=0:atexit_sleep_ms=0:second_deadlock_stack=1",
    # What MPIs do that a sanitizer's runtime does not bear: copy from another process's memory,
    # at addresses that mean nothing in this one; hook the calls that free memory, which a thread
    # also makes when the runtime has already let go of it; and map memory at a fixed address.
    "UCX_TLS": "^cma",
    "UCX_MEM_EVENTS": "no",
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,sm",
    "OMPI_MCA_smsc": "^cma",
    "PMIX_MCA_gds": "hash",
}


class Engine:
    """The programs, built with a sanitizer or without."""

    def __init__(self, sanitizer):
        self.sanitizer = sanitizer
        compiler = (sys.executable, mpi.mpirun(), os.environ.get("CXX"), os.environ.get("CXXFLAGS"))
        with builds.folder(f"engine-{sanitizer or 'plain'}", *compiler) as folder:
            self.folder = folder
            build(sanitizer, folder)
        self.prefix = runnable_prefix(self) if sanitizer == "thread" else []

    def run(self, ranks, program, *arguments, prefix=None, timeout=240):
        """Runs a program on some ranks, or on its own where `ranks` is None."""
        prefix = self.prefix if prefix is None else prefix
        line = [*prefix, str(self.folder / "tests" / program), *arguments]
        if ranks is not None:
            line = mpi.command(ranks, line)
        env = ENVIRONMENT if self.sanitizer else {}
        return mpi.run_command(line, mpi.environment(env), timeout)

    def assert_passes(self, ranks, program, *arguments):
        done = self.run(ranks, program, *arguments)
        assert done.returncode == 0, done.stdout
        assert not REPORT.search(done.stdout), done.stdout
        assert "passed" in done.stdout
        return done.stdout


def build(sanitizer, folder):
    beside = pathlib.Path(sys.executable).parent
    find = functools.partial(shutil.which, path=f"{beside}:{mpi.environment()['PATH']}")
    cmake, ninja = find("cmake"), find("ninja")
    if not cmake or not importlib.util.find_spec("pybind11"):
        pytest.skip("needs cmake and pybind11 (they are in the extra easyddl[test])")
    import pybind11

    configure = [
        *(cmake, "-S", ROOT / "ext", "-B", folder),
        *(["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []),
        f"-DPython_EXECUTABLE={sys.executable}",
        f"-Dpybind11_DIR={pybind11.get_cmake_dir()}",
        "-DEASYDDL_TESTS=ON",
        f"-DEASYDDL_SANITIZE={sanitizer}",
    ]
    done = subprocess.run(configure, text=True, capture_output=True, timeout=120)
    if "sanitizer's runtime library" in done.stderr:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    compile_all = [cmake, "--build", folder, "--target", "engine_tests", "--parallel", "2"]
    done = subprocess.run(compile_all, text=True, capture_output=True, timeout=1500)
    assert done.returncode == 0, done.stdout + done.stderr


def runnable_prefix(engine):
    """What must stand before a program of ThreadSanitizer's, so that it runs at all.

    Its older versions do not bear how newer kernels lay out memory at random. That can be turned
    off, if setarch is there and the container allows it.
    """
    said = ""
    for prefix in [["setarch", "-R"], []]:
        if prefix and not shutil.which(prefix[0]):
            continue
        done = engine.run(1, "engine_planted", prefix=prefix)
        if done.returncode == 0 and "came to the end" in done.stdout:
            return prefix
        said += done.stdout
    pytest.skip(f"ThreadSanitizer cannot run here. It says:\n{said}")


# Not a fixture of the session: pytest would build anew for each of the tests' own parameters.
@functools.cache
def built(sanitizer):
    """An `Engine`, or why there is none: a build that fails is not tried again for each test."""
    try:
        return Engine(sanitizer)
    except (Exception, pytest.skip.Exception) as error:
        return error


@pytest.fixture
def engine(request):
    engine = built(request.param)
    if not isinstance(engine, Engine):
        raise engine
    return engine


def each(choices, in_soak=(), in_gate=()):
    """Parametrizes with each variant's choices, given as a function of the sanitizer.

    The stage `sanitizers` runs those of the sanitizers. Of the others, the soak runs the choices
    `in_soak`, and every run those `in_gate`.
    """

    def marks_of(sanitizer, choice):
        if sanitizer:
            return [pytest.mark.sanitizer]
        if choice in in_soak:
            return [pytest.mark.soak]
        return [pytest.mark.gate] if choice in in_gate else []

    variants = [(name, choices(name)) for name in ("", "address", "thread")]
    params = [
        pytest.param(
            sanitizer,
            choice,
            marks=marks_of(sanitizer, choice),
            id=f"{sanitizer or 'plain'}-{choice}",
        )
        for sanitizer, chosen in [*variants, ("", in_soak)]
        for choice in chosen
    ]
    return functools.partial(pytest.mark.parametrize, argvalues=params, indirect=["engine"])


@pytest.mark.gate
@each(lambda _: ["engine_alone"])(["engine", "program"])
def test_what_needs_no_rank(engine, program):
    engine.assert_passes(None, program)


@each(lambda sanitizer: SLOW_LAYOUTS if sanitizer else LAYOUTS, in_gate=GATE_LAYOUTS)(
    ["engine", "hosts"]
)
def test_ranks(engine, hosts):
    engine.assert_passes(hosts.count(",") + 1, "engine_ranks", hosts)


@each(lambda sanitizer: SLOW_WAYS if sanitizer else WAYS, SOAK_WAYS, GATE_WAYS)(["engine", "way"])
def test_ways_across_hosts(engine, way):
    hosts, racks, route = way
    engine.assert_passes(hosts.count(",") + 1, "engine_ranks", hosts, "0", "0", racks, route)


# A source in each layer, and a header above it.
UPWARD = {
    "common": "mpi/mpi.h",
    "mpi": "profiling/timeline.h",
    "arrays": "profiling/trace.h",
    "profiling": "arrays/dtype.h",
    "algorithms": "runtime/world.h",
    "runtime": "gpu/memory.h",
    "gpu": "levels/nccl_level.h",
    "levels": "collectives/communicator.h",
    "collectives": "reducer/reducer.h",
    "reducer": "bench/bench.h",
    "bench": "reducer/reducer.h",
}


@pytest.mark.gate
@each(lambda sanitizer: [] if sanitizer else UPWARD)(["engine", "layer"])
def test_a_layer_cannot_include_what_is_above(engine, layer, tmp_path):
    commands = json.loads((engine.folder / "compile_commands.json").read_text())
    inside = f"/ext/{layer}/"
    command = next(each["command"] for each in commands if inside in each["file"])
    options = [word for word in shlex.split(command) if word.startswith("-I")]
    own = next((ROOT / "ext" / layer).glob("*.h"))
    for header, compiles in [(f"{layer}/{own.name}", True), (UPWARD[layer], False)]:
        source = tmp_path / "planted.cpp"
        source.write_text(f'#if !__has_include("{header}")\n#error {header} is missing\n#endif\n')
        line = [shlex.split(command)[0], *options, "-fsyntax-only", source]
        done = subprocess.run(line, text=True, capture_output=True, timeout=60)
        assert (done.returncode == 0) == compiles, done.stderr


@pytest.mark.gate
def test_includes_are_written_from_ext():
    """A path that goes up would pass by the layers' include directories."""
    for file in [*ROOT.glob("ext/*/*.h"), *ROOT.glob("ext/**/*.cpp")]:
        for include in re.findall(r'#include "(.*)"', file.read_text()):
            assert (ROOT / "ext" / include).is_file(), f"{file}: {include}"


@pytest.mark.gate
@each(lambda sanitizer: [] if sanitizer else ["Avx2", "Avx512"])(["engine", "kernels"])
def test_kernels_define_nothing_that_the_linker_could_take_for_others(engine, kernels):
    """Else an older processor would meet their instructions in other functions."""
    nm = shutil.which("nm")
    if not nm or os.uname().machine != "x86_64":
        pytest.skip("needs nm (binutils), and x86_64")
    folder = engine.folder / "CMakeFiles" / f"easyddl_kernels_{kernels}.dir"
    listed = [nm, "--defined-only", "--extern-only", *folder.rglob("*.o")]
    said = subprocess.run(listed, text=True, capture_output=True, check=True).stdout
    name = f"k{kernels}Kernels"
    assert re.findall(r"\S+$", said, re.MULTILINE) == [f"_ZN7easyddl{len(name)}{name}E"]


# Watches that the test makes beside the world's outlive it, which sanitizers take for faults.
@each(lambda sanitizer: [] if sanitizer else ["a,b,a"])(["engine", "hosts"])
def test_ranks_that_are_late(engine, hosts):
    said = engine.assert_passes(3, "engine_late", hosts, "1", "2")
    assert "warning: rank 1 on host b has waited for 1 s in an excused wait." in said
    assert "rank 0 on host a has not entered it: it is busy with a long sleep" in said


@each(lambda sanitizer: PLANTED.get(sanitizer, {}))(["engine", "error"])
def test_an_error_that_is_planted_is_reported(engine, error):
    done = engine.run(2, "engine_planted", error)
    assert done.returncode != 0
    assert PLANTED[engine.sanitizer][error] in done.stdout, done.stdout
    assert REPORT.search(done.stdout)
