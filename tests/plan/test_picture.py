"""The picture of `easyddl plan --plot`."""

import itertools
import pathlib
import re
import xml.etree.ElementTree as ElementTree

import pytest
import topologies
from test_plan_cost import graph_of
from topologies import G

from easyddl import cli
from easyddl.plan import cost, picture, plan_file, planner

SPACE = "{http://www.w3.org/2000/svg}"


def drawn(graph):
    """The elements of the picture of a network, after a check that it is valid XML."""
    nest = planner.plan(graph, graph.hosts, 16e6).nest
    names = plan_file.group_names(graph, nest)
    link_bytes = cost.allreduce(graph, nest, 16e6).link_bytes
    lines = picture.draw(graph, nest, names, link_bytes, "a < b", lambda size: f"{size:.0f}")
    return ElementTree.fromstring("\n".join(lines)), names, link_bytes


def words(root):
    return [each.text for each in root.iter(f"{SPACE}text")]


NETWORKS = {
    "unequal racks": graph_of(*topologies.racks([1, 4, 2], G / 5)),
    "aisles": graph_of(*topologies.aisles(G / 8, G / 4)),
    "a ring of switches": graph_of(*topologies.chain([2, 1, 2, 1], G, True)),
    "more switches than hosts": graph_of(*topologies.spines(2, 1, 6, G)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_node_group_and_link_is_drawn(name):
    graph = NETWORKS[name]
    root, names, link_bytes = drawn(graph)
    found = words(root)
    for node in (*graph.hosts, *graph.switches, *names.values(), "a < b"):
        assert node in found
    assert len(list(root.iter(f"{SPACE}path"))) == len(graph.links)
    width, height = map(float, root.get("viewBox").split()[2:])
    for box in root.iter(f"{SPACE}rect"):
        x, y, wide, high = (float(box.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert 0 <= x <= x + wide <= width and 0 <= y <= y + high <= height
    for (a, b), size in link_bytes.items():
        text, back = f"{size:.0f}", f"{link_bytes.get((b, a), 0.0):.0f}"
        assert text in found if text == back else {f"{text} up", f"{text} down"} & {*found}
    boxes = [box for box in root.iter(f"{SPACE}rect") if box.get("height") == "34"]
    places = [(float(box.get("x")), float(box.get("y"))) for box in boxes]
    assert len(places) == len(graph.hosts) + len(graph.switches)
    for (x, y), (other_x, other_y) in itertools.combinations(places, 2):
        assert abs(x - other_x) > 92 or abs(y - other_y) > 34  # they do not cover one another


def test_the_picture_of_the_guide(tmp_path):
    guide = (pathlib.Path(__file__).parents[2] / "tutorials" / "planning.md").read_text()
    (tmp_path / "network.toml").write_text(re.search(r"'END'\n(.*?)END", guide, re.DOTALL)[1])
    options = ["--topology", str(tmp_path / "network.toml"), "-H", "h1:2,h2:2,h3:2,h4:2"]
    assert cli.main(["plan", *options, "--plot", str(tmp_path / "plan.svg")]) == 0
    shown = pathlib.Path(__file__).parents[2] / "tutorials" / "plan.svg"
    assert (tmp_path / "plan.svg").read_text() == shown.read_text()
