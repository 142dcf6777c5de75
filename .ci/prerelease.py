#!/usr/bin/env python3
"""Compares the tests that fail with a pre-release of Keras with the expected failures.

    python .ci/prerelease.py .ci/prerelease_failures REPORT.xml...

A report is a file that pytest writes with --junitxml. The list has the name of a test on each line,
and may have comments that begin with #. Differences from the list are printed, but are no error:
they show what to change before this version of Keras is released.
"""

import pathlib
import sys
import xml.etree.ElementTree


def main(listed, *reports):
    """Runs the command line."""
    failed, passed = set(), set()
    for report in reports:
        read_results(report, failed, passed)
    expected = expected_failures(listed)
    counts = f"{len(passed)} passed, {len(failed)} failed"
    print(f"{counts}, of which {len(failed & expected)} are listed.")
    for name in sorted(failed - expected):
        print(f"FAILED with this pre-release of Keras, and is not listed in {listed}: {name}")
    for name in sorted(expected & passed):
        print(f"Passed with this pre-release of Keras, and is listed in {listed}: {name}")


def read_results(report, failed, passed):
    """Adds the names of the tests that failed, and of those that passed, to two sets."""
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        outcomes = {child.tag for child in case}
        if outcomes & {"failure", "error"}:
            failed.add(case.get("name"))
        elif "skipped" not in outcomes:
            passed.add(case.get("name"))


def expected_failures(listed):
    """Returns the names in the list."""
    lines = pathlib.Path(listed).read_text().splitlines()
    return {text for line in lines if (text := line.partition("#")[0].strip())}


if __name__ == "__main__":
    main(*sys.argv[1:])
