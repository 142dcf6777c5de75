"""Which tests run beside each other: some that compute, and then all that wait."""

import pathlib

import groups
import pytest

TESTS = pathlib.Path(groups.__file__).parent


def test_the_listed_files_exist():
    for file in (*groups.WAITING, *groups.SIGNALS):
        assert (TESTS / file).is_file(), file


def test_the_checks_of_a_job_are_a_group():
    file = "tests/parallel/test_checks.py"
    first = groups.group_of(f"{file}::test_checks[torch-3-abb:uneven:check_few_batches]")
    second = groups.group_of(f"{file}::test_checks[torch-3-abb:uneven:check_error]")
    other = groups.group_of(f"{file}::test_checks[torch-3:fit:check_error]")
    assert first == second != other


def test_each_sanitizer_is_a_group():
    file = "tests/parallel/test_engine.py"
    names = [f"{file}::test_ranks[{kind}-a,b,a]" for kind in ("plain", "address", "thread")]
    assert len(set(map(groups.group_of, names))) == 3
    assert groups.group_of(names[0]) == "parallel/test_engine.py"


def test_files_with_short_deadlines_share_two_groups():
    short = {group for group in groups.WAITING.values() if group}
    assert len(short) == 2
    for file, group in groups.WAITING.items():
        assert groups.group_of(f"tests/{file}::test_a[b::c]") == (group or file)


class Worker:
    """Stands for a worker of pytest-xdist, whose last test waits for another one."""

    def __init__(self, number):
        self.gateway = type("Gateway", (), {"id": f"gw{number}"})
        self.queue, self.shutting_down = [], False

    def send_runtest_some(self, indexes):
        self.queue += indexes

    def shutdown(self):
        self.shutting_down = True

    def next(self):
        """The test that it would run now, or `None`."""
        is_enough = len(self.queue) > (0 if self.shutting_down else 1)
        return self.queue.pop(0) if is_enough else None


def test_all_workers_wait_until_some_have_computed():
    pytest.importorskip("xdist")
    import scheduler

    computing = [f"tests/single/test_{i}.py::test_{j}" for i in range(5) for j in range(4)]
    waiting = [f"tests/{file}::test_{j}" for file in groups.WAITING for j in range(3)]
    tests, few = [*waiting, *computing], groups.COMPUTING
    option = type("Option", (), {"loadscopereorder": True, "tx": [f"{few + 2}*popen"]})
    config = type("Config", (), {"option": option, "getvalue": lambda self, name: option.tx})()
    scheduling = scheduler.GroupScheduling(config)
    workers = [Worker(number) for number in range(few + 2)]
    for worker in workers:
        scheduling.add_node(worker)
        scheduling.add_node_collection(worker, tests)
    scheduling.schedule()
    ran = []
    while True:
        now = [(number, worker.next()) for number, worker in enumerate(workers)]
        now = [(number, test) for number, test in now if test is not None]
        if not now:
            break
        for number, test in now:
            ran.append((number, tests[test]))
            scheduling.mark_test_complete(workers[number], test)
    assert sorted(test for _, test in ran) == sorted(tests)
    place = {test: order for order, (_, test) in enumerate(ran)}
    # A worker keeps its last tests until it has others, so some of those that wait are between.
    late = sorted(place[test] for test in computing)[-2 * few]
    assert late < min(place[test] for test in waiting if ran[place[test]][0] >= few)
    assert {number for number, test in ran if test in computing} == set(range(few))
    assert {number for number, _ in ran} == set(range(few + 2))
