"""The names of the files in tests/, which are modules without a package."""

import collections
import sys

import mpi

# But for scripts that no test imports.
MODULES = [
    path.stem
    for path in mpi.TESTS.rglob("*.py")
    if path.name not in ("__init__.py", "conftest.py")
    and not {"benchmarks", "scripts"} & set(path.parts)
]


def test_no_two_files_have_the_same_name():
    assert [name for name, count in collections.Counter(MODULES).items() if count > 1] == []


def test_no_file_hides_a_module_of_python():
    assert not set(MODULES) & sys.stdlib_module_names


def test_checks_are_imported_by_no_other_file():
    for path in mpi.TESTS.rglob("*.py"):
        for line in path.read_text().splitlines():
            first, _, rest = line.partition(" ")
            is_import = first in ("from", "import") and rest.split()
            assert not is_import or not rest.split()[0].endswith("_checks"), (path, line)
