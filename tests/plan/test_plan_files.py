"""The files of a network and of a plan: what they say, and what is wrong in them."""

import re

import pytest
import topologies
from test_plan_cost import graph_of

from easyddl.plan import cost, network_file, plan_file, planner

G = topologies.G

NETWORK = """\
hosts = "h[1-4]"
switches = ["r1", "r2", "core"]

[[links]]
between = "h[1-2]"
and = "r1"
rate = "1 Gbit/s"

[[links]]
between = "h[3-4]"
and = "r2"
rate = "125 MB/s"
latency = "20 us"

[[links]]
between = ["r1", "r2"]
and = "core"
rate = "200 Mbit/s"
latency = "0 s"
"""


def network(tmp_path, text, name="network.toml"):
    path = tmp_path / name
    path.write_text(text)
    return network_file.read(str(path), G, G / 2)


def test_a_network_of_toml(tmp_path):
    graph = network(tmp_path, NETWORK)
    assert graph.hosts == ("h1", "h2", "h3", "h4") and len(graph.links) == 6
    assert graph.rates["h1", "r1"] == graph.rates["r2", "h4"] == G
    assert graph.rates["r1", "core"] == 200e6 / 8
    # By default, of 32 KiB at the rate of the link for both hosts of a message.
    assert graph.route("h1", "h2").latency == pytest.approx(32768 / G)
    assert graph.route("h3", "h4").latency == pytest.approx(40e-6)


WRONG_NETWORKS = {
    "an unknown name": ('and = "r1"', 'and = "r7"', 6, "leads to r7, which is no host", "'r7'"),
    "a rate of zero": ('"200 Mbit/s"', '"0 Gbit/s"', 18, "a rate above 0", "'0 Gbit/s'"),
    "no unit": ('"1 Gbit/s"', "10", 7, "in one of the units", "10"),
    "a negative latency": ('"20 us"', '"-1 us"', 13, "a time of at least 0", "'-1 us'"),
    "a link twice": (
        '"h[3-4]"\nand = "r2"',
        '"h[2-4]"\nand = "r1"',
        10,
        "h2 and r1 have a link",
        "",
    ),
    "a link to itself": ('"core"\nrate', '"r1"\nrate', 17, "joins r1 to itself", "'r1'"),
    "a host twice": ('"h[1-4]"', '["h[1-4]", "h2"]', 1, "names h2 twice", "'h2'"),
    "a switch with the name of a host": ('["r1",', '["h1", "r1",', 2, "name of a host", "'h1'"),
    "an unknown key": (
        'latency = "20 us"',
        'delay = "20 us"',
        13,
        "'delay' is not one of",
        "20 us",
    ),
    "a missing key": ('and = "r1"\n', "", 4, "'and' of each [[links]] is missing", "None"),
    "brackets": ('"h[1-4]"', '"h[1-4"', 1, "close its brackets", "'h[1-4'"),
    "no name": ('"h[1-4]"', '"h[1-4],x y"', 1, "not a valid host name", "x y"),
    "letters": ('"h[1-4]"', '"h[1-a]"', 1, "not a range of numbers", "h[1-a]"),
    "no hosts": ('"h[1-4]"', "[]", 1, "a network needs a host", "[]"),
    "many hosts": ('"h[1-4]"', '"h[1-100000000]"', 1, "may have 100000 hosts", "h[1-1000"),
    "an endless latency": ('"20 us"', f'"{"9" * 400} us"', 13, "a time of at least 0", "999"),
}


@pytest.mark.parametrize("name", WRONG_NETWORKS)
def test_an_error_of_a_network_names_line_and_value(name, tmp_path):
    old, new, line, problem, value = WRONG_NETWORKS[name]
    assert old in NETWORK
    with pytest.raises(ValueError) as raised:
        network(tmp_path, NETWORK.replace(old, new, 1))
    text = str(raised.value)
    assert f"network.toml, line {line}`: " in text, text
    assert problem in text and re.search(f"Received: .*{re.escape(value)}", text), text
    assert text.count("Received: ") == 1


def test_a_network_of_one_host(tmp_path):
    graph = network(tmp_path, 'hosts = "h1"\nlinks = []\n')
    assert planner.plan(graph, ["h1"], 1e6).nest == ("h1",)


def test_a_network_in_parts(tmp_path):
    with pytest.raises(ValueError, match=r"is not connected\. No links lead from h1 to h3"):
        network(
            tmp_path, NETWORK.replace('["r1", "r2"]', '["r1"]').replace('"r1", "core"', '"core"')
        )


def test_a_host_forwards_nothing(tmp_path):
    text = 'hosts = "h[1-3]"\nlinks = [{between = "h1", and = "h[2-3]", rate = "1 Gbit/s"}]\n'
    with pytest.raises(ValueError, match=r"No links lead from h2 to h3\. Hosts forward nothing"):
        network(tmp_path, text)


def test_a_file_that_is_not_toml(tmp_path):
    with pytest.raises(ValueError, match=r"not valid TOML: .*line 1"):
        network(tmp_path, "hosts = h1")
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        network_file.read(str(tmp_path / "none.toml"), G, G)


SLURM = """\
# A tree
SwitchName=s1 Nodes=h[1-2] LinkSpeed=10
SwitchName=s2 Nodes=h[3-4]

SwitchName=s0 Switches=s[1-2]
"""


def test_a_network_of_slurm(tmp_path):
    graph = network(tmp_path, SLURM, "topology.conf")
    assert graph.hosts == ("h1", "h2", "h3", "h4")
    assert graph.rates["h3", "s2"] == G and graph.rates["s2", "s0"] == G / 2
    assert len(graph.route("h1", "h4").links) == 4


WRONG_TREES = {
    "a host twice": ("h[3-4]", "h[2-4]", 3, "h2 is below the switch s1 already", "h[2-4]"),
    "a switch twice": ("SwitchName=s2", "SwitchName=s1", 3, "s1 is given twice", "SwitchName=s1"),
    "a host as a switch": ("h[3-4]", "h3,s0", 5, "s0 is the name of a host, too", "SwitchName=s0"),
    "an unknown switch": ("s[1-2]", "s[1-3]", 5, "no line describes the switch s3", "s1,s2,s3"),
    "no switch": (
        "SwitchName=s2",
        "BlockName=s2",
        3,
        "expected a switch of Slurm's tree",
        "BlockName",
    ),
}


@pytest.mark.parametrize("name", WRONG_TREES)
def test_an_error_of_a_tree_names_line_and_value(name, tmp_path):
    old, new, line, problem, value = WRONG_TREES[name]
    with pytest.raises(ValueError) as raised:
        network(tmp_path, SLURM.replace(old, new, 1), "topology.conf")
    text = str(raised.value)
    assert f"topology.conf, line {line}`: " in text and problem in text, text
    assert re.search(f"Received: .*{re.escape(value)}", text), text


@pytest.mark.parametrize(
    "nest",
    [
        ("h1", "h0"),
        (("h2", "h0"), ("h1",)),
        ((("h000", "h001"), ("h010", "h011")), (("h100", "h101"), ("h110", "h111"))),
    ],
)
def test_a_plan_is_read_as_it_was_written(nest, tmp_path):
    graph = graph_of(*topologies.aisles(G, G))
    if nest[0] == "h1" or "h2" in nest[0]:
        graph = graph_of(["h0", "h1", "h2"], [(f"h{i}", f"s{i // 2}", G, 0.0) for i in range(3)])
    path = tmp_path / "plan.toml"
    names = plan_file.group_names(graph, nest)
    rules = (0, ("direct",) * cost.depth(nest)), (70_000, ("ring",) * cost.depth(nest))
    plan_file.write(str(path), nest, names, rules, "A plan\nof two lines")
    assert plan_file.read(str(path)) == (nest, names, rules)
    assert path.read_text().startswith("# A plan\n# of two lines\nformat = 1\nhosts = [")


def test_groups_have_the_names_of_their_switches():
    graph = graph_of(*topologies.aisles(G, G))
    nest = ((("h000", "h001"), ("h010", "h011")), (("h100", "h101"), ("h110", "h111")))
    assert sorted(plan_file.group_names(graph, nest).values()) == [
        "a0r0", "a0r1", "a1r0", "a1r1", "group1", "group2",
    ]  # fmt: skip


def test_a_switch_whose_name_cannot_be_that_of_a_rack(tmp_path):
    graph = graph_of(["h0", "h1", "h2"], [(f"h{i}", f"s,{i // 2}", G, 0.0) for i in range(3)])
    nest = (("h0", "h1"), ("h2",))
    names = plan_file.group_names(graph, nest)
    assert names == {nest[0]: "group1", nest[1]: "group2"}
    path = tmp_path / "plan.toml"
    plan_file.write(str(path), nest, names, ())
    assert plan_file.read(str(path)) == (nest, names, ())
    path.write_text(path.read_text().replace("group2", "group/2"))
    with pytest.raises(ValueError, match=r"line 10`: the name of a group .*'group/2'"):
        plan_file.read(str(path))


PLAN = """\
format = 1
hosts = ["h1", "h2", "h3"]
order = ["x", "y"]

[[groups]]
name = "x"
members = ["h1", "h2"]

[[groups]]
name = "y"
members = ["h3"]

[[algorithms]]
from = 0
levels = ["direct", "whole"]

[[algorithms]]
from = 5000
levels = ["ring", "halving"]
"""

NESTED = "".join(
    f'[[groups]]\nname = "g{i}"\nmembers = ["{f"g{i + 1}" if i < 19 else "h3"}"]\n'
    for i in range(20)
)

WRONG_PLANS = {
    "many levels": ('members = ["h3"]\n', f'members = ["g0"]\n{NESTED}', 23, "16 levels", "['g4']"),
    "an unknown host": ('["h3"]', '["h4"]', 11, "h4 is none of the hosts", "['h4']"),
    "a group twice": ('name = "y"', 'name = "x"', 10, "the group x is given twice", "'x'"),
    "a host in two groups": ('["h3"]', '["h3", "h1"]', 3, "the host h1 is in 2 of", "['x', 'y']"),
    "a host in no group": ('["h1", "h2"]\n', '["h1"]\n', 3, "the host h2 is in 0 of", "['x', 'y']"),
    "a loop": ('["h3"]', '["h3", "y"]', 11, "the group y contains itself", "'y'"),
    "a group that is not placed": ('["x", "y"]', '["x"]', 3, "the host h3 is in 0 of", "['x']"),
    "an unknown group": ('["x", "y"]', '["x", "z"]', 3, "z is none of the hosts", "'z'"),
    "levels": ('["h3"]', '["h3", "x"]', 11, "the same number of levels", "'x'"),
    "another format": ("format = 1", "format = 2", 1, "reads the format 1", "2"),
    "an empty group": ('["h3"]', "[]", 11, "the group y has no member", "[]"),
    "numbers": ('["h3"]', "[3]", 11, "members must be a list of names", "[3]"),
    "no order": ('order = ["x", "y"]', "", 1, "'order' must name the outermost groups", "None"),
    "an empty order": ('["x", "y"]', "[]", 3, "'order' must name the outermost groups", "[]"),
    "a list in a list": ('["ring", "halving"]', '[["ring"]]', 19, "a list of whole", "[['ring']]"),
    "too many bytes": ("from = 5000", f"from = 1{'0' * 18}", 18, "below 1e+18", "1000"),
    "a truth": ("format = 1", "format = true", 1, "reads the format 1", "True"),
    "a host without a name": ('["h1", "h2", "h3"]', '["h1", "", "h3"]', 2, "without spaces", "''"),
    "an unknown algorithm": ('"ring"', '"tree"', 19, "a list of whole, direct", "['tree', "),
    "no list": ('["ring", "halving"]', '"ring"', 19, "a list of whole, direct", "'ring'"),
    "an algorithm too few": ('"ring", ', "", 19, "of each of the 2 level(s)", "['halving']"),
    "a first number": ("from = 0", "from = 1", 14, "the first from must be 0", "1"),
    "a number twice": ("from = 5000", "from = 0", 18, "greater than the one before", "0"),
    "no number": ("from = 5000", 'from = "5 kB"', 18, "a number of bytes", "'5 kB'"),
    "a group named as a host": ('"y"\nmembers', '"h1"\nmembers', 10, "name of a host, too", "'h1'"),
}


@pytest.mark.parametrize("name", WRONG_PLANS)
def test_an_error_of_a_plan_names_line_and_value(name, tmp_path):
    old, new, line, problem, value = WRONG_PLANS[name]
    assert old in PLAN
    path = tmp_path / "plan.toml"
    path.write_text(PLAN.replace(old, new, 1))
    with pytest.raises(ValueError) as raised:
        plan_file.read(str(path))
    text = str(raised.value)
    assert f"plan.toml, line {line}`: " in text and problem in text, text
    assert re.search(f"Received: .*{re.escape(value)}", text), text


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [("10 Gbit/s", "rate", 1.25e9), ("1.5MB/s", "rate", 1.5e6), ("3 ms", "latency", 3e-3),
     ("0 us", "latency", 0), ("16 MiB", "size", 2**24)],
)  # fmt: skip
def test_quantities(text, kind, value):
    assert network_file.quantity(text, kind) == pytest.approx(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("10", "rate"),
        ("0 MB", "size"),
        ("1 Gb/s", "rate"),
        ("1e3 MB", "size"),
        ("nan s", "latency"),
    ],
)
def test_wrong_quantities(text, kind):
    with pytest.raises(ValueError, match=r"in one of the units|above 0"):
        network_file.quantity(text, kind)
