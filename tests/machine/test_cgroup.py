import pytest

from easyddl.machine import cgroup

V2 = "24 1 0:21 {root} {at} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = "30 25 0:26 {root} {at} rw,nosuid - cgroup cgroup rw,{controllers}\n"


def v2(group, *, root="/", at="/sys/fs/cgroup"):
    return {
        "proc/self/cgroup": f"0::{group}\n",
        "proc/self/mountinfo": V2.format(root=root, at=at),
    }


def cpus(root):
    quota = cgroup.cpu_quota(root)
    return quota and quota.cpus


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("max 100000\n", None),
        ("150000 100000\n", 1.5),
        ("400000 50000\n", 8),
        ("", None),
        ("many 100000\n", None),
        ("0 100000\n", None),
        ("100000 0\n", None),
        ("100000\n", None),
    ],
)
def test_a_container_that_sees_its_own_cgroup_as_the_root(tree, text, want):
    assert cpus(tree({**v2("/"), "sys/fs/cgroup/cpu.max": text})) == want


@pytest.mark.parametrize(("inner", "outer"), [("2", "6"), ("6", "2")])
def test_the_smallest_quota_among_the_ancestors_counts(tree, inner, outer):
    folder = "sys/fs/cgroup/system.slice/slurmd.service"
    files = {
        **v2("/system.slice/slurmd.service/job_7/step_0/task_1"),
        f"{folder}/job_7/step_0/task_1/cpu.max": "max 100000",
        f"{folder}/job_7/step_0/cpu.max": f"{inner}00000 100000",
        f"{folder}/job_7/cpu.max": f"{outer}00000 100000",
        f"{folder}/cpu.max": "max 100000",
    }
    assert cpus(tree(files)) == 2


def test_a_container_that_reads_the_path_of_its_host(tree):
    root = "/kubepods/pod1/abc"
    files = {**v2(root, root=root), "sys/fs/cgroup/cpu.max": "250000 100000"}
    assert cpus(tree(files)) == 2.5


def test_a_path_outside_of_the_mounted_cgroup(tree):
    files = {**v2("/../other"), "sys/fs/cgroup/cpu.max": "300000 100000"}
    assert cpus(tree(files)) == 3
    files = {**v2("/docker/abc/inner"), "sys/fs/cgroup/cpu.max": "200000 100000"}
    assert cpus(tree(files)) == 2


def test_version_1(tree):
    files = {
        "proc/self/cgroup": "5:memory:/a\n4:cpu,cpuacct:/docker/abc\n3:cpuset:/docker/abc\n",
        "proc/self/mountinfo": V1.format(
            root="/docker/abc", at="/sys/fs/cgroup/cpu,cpuacct", controllers="cpu,cpuacct"
        )
        + V1.format(root="/docker/abc", at="/sys/fs/cgroup/cpuset", controllers="cpuset"),
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "350000\n",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpuset/cpuset.cpus": "0-2,7\n",
    }
    root = tree(files)
    assert cpus(root) == 3.5
    assert cgroup.cpuset(root) == {0, 1, 2, 7}


def test_version_1_without_a_quota_and_version_2_beside_it(tree):
    files = {
        "proc/self/cgroup": "4:cpu:/\n0::/\n",
        "proc/self/mountinfo": V1.format(root="/", at="/sys/fs/cgroup/cpu", controllers="cpu")
        + V2.format(root="/", at="/sys/fs/cgroup/unified"),
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert cpus(tree(files)) is None
    assert cpus(tree({"sys/fs/cgroup/unified/cpu.max": "100000 100000"})) == 1


def test_the_cpus_of_version_2_are_those_of_the_innermost_cgroup_that_tells(tree):
    files = {
        **v2("/job/task"),
        "sys/fs/cgroup/job/cpuset.cpus.effective": "4-7\n",
        "sys/fs/cgroup/cpuset.cpus.effective": "0-63\n",
    }
    assert cgroup.cpuset(tree(files)) == {4, 5, 6, 7}


def test_processes_of_one_cgroup_share_its_quota(tree):
    files = {
        **v2("/job/a"),
        "sys/fs/cgroup/job/cpu.max": "200000 100000",
        "sys/fs/cgroup/job/a/cpu.max": "max 100000",
        "sys/fs/cgroup/job/b/cpu.max": "150000 100000",
    }
    root = tree(files)
    shared = cgroup.cpu_quota(root)
    assert cgroup.cpu_quota(tree(v2("/job/c"))) == shared
    own = cgroup.cpu_quota(tree(v2("/job/b")))
    assert own.cpus == 1.5 and own.group != shared.group


def test_no_cgroups(tmp_path):
    assert cgroup.cpu_quota(tmp_path) is None
    assert cgroup.cpuset(tmp_path) is None


def test_this_host():
    quota = cgroup.cpu_quota()
    assert quota is None or quota.cpus > 0
