"""The command `easyddl plan`."""

import json
import pathlib
import re

import pytest
import topologies
from simulated_network import G, Network, named
from test_plan_files import NETWORK, SLURM

from easyddl import cli
from easyddl.doctor import examination
from easyddl.doctor.finding import error
from easyddl.plan import job_hosts, plan_file, planner

GUIDE = pathlib.Path(__file__).parents[2] / "tutorials" / "planning.md"


MIXED = ("-H", "h1,h3,h2,h4")  # not rack by rack, so that a plan gains something


@pytest.fixture
def network(tmp_path):
    path = tmp_path / "network.toml"
    path.write_text(NETWORK)
    return str(path)


def plan(capsys, *arguments):
    status = cli.main(["plan", *arguments])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def times(text):
    """The milliseconds of the lines of the table."""
    scales = {"us": 1e-3, "ms": 1, "s": 1e3}
    found = re.findall(r"^(\S.*?) {2,}([\d.]+) (us|ms|s)\b", text, re.MULTILINE)
    return {name: float(value) * scales[unit] for name, value, unit in found}


def test_alternatives(network, capsys):
    status, out, _ = plan(capsys, "--topology", network, "-H", "h1:2,h3:2,h2:2,h4:2")
    assert status == 0
    assert out.startswith("An allreduce of 16 MB between 4 hosts:")
    found = times(out)
    listed, planned = found["hosts as listed, without a plan"], found["planned"]
    assert found["lower bound"] <= planned < listed / 1.5
    assert found["hosts as listed, ring"] > 2 * planned
    assert "With `-o plan.toml` the plan is written to a file, for" in out
    line = "  easyddl run --plan plan.toml -H h1:2,h3:2,h2:2,h4:2 python train.py"
    assert out.splitlines()[-1] == line


def test_levels_of_groups(tmp_path, capsys):
    """Three aisles of three racks of three hosts, with slow links between racks and aisles."""
    hosts, links = topologies.aisles(topologies.G / 50, topologies.G / 4, (3, 3, 3))
    switches = sorted({end for a, b, *_ in links for end in (a, b)} - {*hosts})
    lines = [f"hosts = {json.dumps(hosts)}", f"switches = {json.dumps(switches)}"]
    for a, b, rate, latency in links:
        lines += ["[[links]]", f'between = "{a}"', f'and = "{b}"']
        lines += [f'rate = "{rate / 1e6} MB/s"', f'latency = "{latency * 1e6} us"']
    path, written = tmp_path / "aisles.toml", str(tmp_path / "plan.toml")
    path.write_text("\n".join(lines))
    plan(capsys, "--topology", str(path), "-o", written)
    racks = job_hosts.of_hosts(written, hosts, "--plan", {})["racks"].split(",")
    assert len(racks) == 27
    assert len(set(racks)) == 9 and all(racks.count(rack) == 3 for rack in racks)
    assert len({rack.split("/")[0] for rack in racks}) == 3
    assert all(re.fullmatch(r"group\d/a\dr\d", rack) for rack in racks)


def test_the_bytes_of_each_link(network, capsys):
    _, out, _ = plan(capsys, *MIXED, "--topology", network, "--explain", "--size", "8 MB")
    assert re.search(r"^    h1 +sends 12 MB, receives 12 MB$", out, re.MULTILINE)
    assert re.search(r"^  r1 > core +8 MB$", out, re.MULTILINE)
    assert re.search(r"^  from 0 B +flat\n  from [\d.]+ kB +direct, then whole$", out, re.MULTILINE)
    table = out[out.index("Times by size:") : out.index("With `-o")]
    equal = re.search(r"^ +1 kB +\S+ \S+ +(\S+ \S+) +(\S+ \S+)$", table, re.MULTILINE)
    assert equal[1] == equal[2]
    assert re.findall(r"^ +(\d+)  ", table, re.MULTILINE) == ["2", "4"]


def test_the_plan_is_written(network, tmp_path, capsys):
    path = str(tmp_path / "plan.toml")
    status, out, _ = plan(capsys, *MIXED, "--topology", network, "-o", path)
    assert status == 0 and f"{path} has the plan, for" in out
    nest, names, rules = plan_file.read(path)
    assert nest == (("h1", "h2"), ("h3", "h4")) and sorted(names.values()) == ["r1", "r2"]
    assert rules[0] == (0, ("flat",)) and rules[1:] == ((rules[1][0], ("direct", "whole")),)


def test_a_tree_of_slurm(tmp_path, capsys):
    path, hosts = tmp_path / "topology.conf", tmp_path / "hosts"
    path.write_text(SLURM)
    hosts.write_text("h4\nh1\nh3\nh2\n")
    written = str(tmp_path / "plan.toml")
    _, out, _ = plan(
        capsys,
        *("--topology", str(path), "--hostfile", str(hosts), "--uplink", "1 Gbit/s"),
        *("-o", written),
    )
    assert f"  easyddl run --plan {written} --hostfile {hosts} python train.py\n" in out
    nest, names, _ = plan_file.read(written)
    assert nest == (("h4", "h3"), ("h1", "h2"))
    assert [names[group] for group in nest] == ["s2", "s1"]


def test_on_a_flat_network_nothing_is_proposed(tmp_path, capsys):
    path = tmp_path / "flat.toml"
    path.write_text(
        'hosts = "h[1-3]"\nswitches = "s"\n\n'
        '[[links]]\nbetween = "h[1-3]"\nand = "s"\nrate = "1 Gbit/s"\n'
    )
    _, out, _ = plan(capsys, "--topology", str(path), "-H", "h2,h3,h1")
    assert "No order and no groups of these hosts cost 10% less. " in out
    assert out.splitlines()[-1] == "  easyddl run --plan plan.toml -H h2,h3,h1 python train.py"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["-H", "h1,h9"], "`-H`: the host h9 is not in "),
        (["-H", "h1,h1"], "`-H` names the host h1 2 times"),
        (["-o", "/dev/full"], "--output: /dev/full cannot be written: No space left on device"),
        (["--topology", "none.toml"], "`--topology`: none.toml cannot be read"),
        (["--topology"], "pass the hosts to measure as `-H h1,h2,...`"),
        (["--plot", "plan.png"], "argument --plot: must end in .svg. Received: 'plan.png'"),
        (["--size", "16"], "argument --size: must be a size above 0"),
        (
            ["--size", "20000000000 GB"],
            "argument --size: must be a size above 0, such as '16 MB', ",
        ),
    ],
)
def test_wrong_options(arguments, problem, network, capsys):
    try:
        named = [] if arguments == ["--topology"] else ["--topology", network, *arguments]
        status = cli.main(["plan", *named])
    except SystemExit as ended:
        status = ended.code
    printed = capsys.readouterr()
    assert (status, printed.out) == (2, "")
    assert problem in printed.err and "easyddl plan: " in printed.err


@pytest.mark.parametrize("option", ["--output", "--plot"])
def test_a_file_that_cannot_be_written_is_found_before_the_search(
    option, network, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(planner, "plan", lambda *_: pytest.fail("The search has begun."))
    (folder := tmp_path / "folder.svg").mkdir()
    for path, problem in [
        ("/nonexistent/plan.svg", "there is no directory '/nonexistent'"),
        (str(folder), f"{str(folder)!r} is a directory"),
        ("/proc/plan.svg", "'/proc/plan.svg' cannot be written: No such file or directory"),
    ]:
        status, out, error = plan(capsys, "--topology", network, option, path)
        assert (status, out) == (2, "")
        assert error == f"easyddl plan: argument {option}: {problem}\n"


def test_a_file_is_not_written_over_another(network, tmp_path, capsys):
    both = str(tmp_path / "both.svg")
    for arguments, problem in [
        (["-o", network], f"--output: {network} is the file of --topology, too"),
        (["-o", both, "--plot", both], f"--plot: {both} is the file of --output, too"),
    ]:
        status, _, error = plan(capsys, "--topology", network, *arguments)
        assert (status, error) == (2, f"easyddl plan: argument {problem}\n")


@pytest.fixture
def measured(monkeypatch):
    """Replaces the measurements on hosts by those of a simulated network."""

    def replace(network, errors=()):
        def survey(hosts, options, progress):
            assert hosts == list(network.hosts) and (options.rsh, options.seconds) == ("r", 9)
            return None if errors else network.survey(0), list(errors)

        monkeypatch.setattr(examination, "survey", survey)
        hosts = ",".join(f"{host}:2" for host in network.hosts)
        return ["-H", hosts, "--rsh", "r", "--seconds", "9"]

    return replace


def test_measured_racks(measured, tmp_path, capsys):
    racks = [(("h1", "h3"), G / 5), (("h2", "h4"), G / 5)]
    arguments = measured(Network(named("h1 h2 h3 h4"), racks))
    path = tmp_path / "plan.toml"
    status, out, _ = plan(capsys, *arguments, "-o", str(path))
    assert status == 0
    assert re.search(
        r"^  group1: h1 h3, .* Mbit/s for all of them at the same time, .* or more to other hosts$",
        out,
        re.M,
    )
    assert out.endswith(f"easyddl run --plan {path} -H h1:2,h2:2,h3:2,h4:2 python train.py\n")
    nest, names, _ = plan_file.read(path)
    assert nest == (("h1", "h3"), ("h2", "h4"))
    assert {names[group] for group in nest} == {"group1", "group2"}
    assert "# group2: h2 h4, " in path.read_text()


def test_nothing_is_proposed_for_hosts_that_are_alike(measured, tmp_path, capsys):
    path = tmp_path / "plan.toml"
    status, out, _ = plan(capsys, *measured(Network(named("h1 h2 h3"))), "-o", str(path))
    assert status == 0 and out.startswith("Nothing is proposed: the hosts are alike: ")
    assert f"{path} is not written." in out and not path.exists()


def test_a_host_that_cannot_be_measured(measured, capsys):
    problem = error("hosts", "no agent could be started on h2", "check it", ["h2"])
    status, out, said = plan(capsys, *measured(Network(named("h1 h2")), [problem]))
    assert status == 2 and out == ""
    assert said == "easyddl plan: no agent could be started on h2 (check it)\n"


def test_the_guide_shows_what_the_command_prints(tmp_path, capsys, monkeypatch):
    blocks = re.findall(r"```(\w+)\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    commands = [text for language, text in blocks if language == "sh"]
    shown = next(text for language, text in blocks if language == "text")
    written = next(text for language, text in blocks if language == "toml")
    monkeypatch.chdir(tmp_path)
    pathlib.Path("network.toml").write_text(re.search(r"'END'\n(.*)END", commands[0], re.DOTALL)[1])
    _, out, _ = plan(capsys, *commands[1].split()[2:])
    assert out == shown
    lines = pathlib.Path("plan.toml").read_text().splitlines(keepends=True)
    assert "".join(line for line in lines if not line.startswith("#")) == written
