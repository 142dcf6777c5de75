"""The racks and the order that a plan gives the hosts of a job."""

import pytest

from easyddl.plan import job_hosts, plan_file

RACKS = (("h1", "h3"), ("h2", "h4"))
AISLES = ((("h1",), ("h2",)), (("h3", "h4"), ("h5",)))


def of_hosts(path, hosts, argument="--plan", **environment):
    return job_hosts.of_hosts(path, hosts, argument, environment)


def settings(racks, order):
    return {"racks": racks, "host_order": order, "algorithm": ""}


def write(tmp_path, nest, names, rules=()):
    path = tmp_path / "plan.toml"
    plan_file.write(path, nest, dict(names), rules)
    return str(path)


@pytest.fixture
def racks(tmp_path):
    return write(tmp_path, RACKS, zip(RACKS, ("r1", "r2"), strict=True))


@pytest.mark.parametrize(
    ("hosts", "expected", "order"),
    [
        ("h1 h2 h3 h4", "r1,r2,r1,r2", "0,2,1,3"),  # the racks in the order of the job
        ("h4 h1", "r2,r1", "1,0"),  # other hosts of the plan are left out
        ("h3.a.org h2.a.org", "r1,r2", "0,1"),
    ],
)
def test_hosts_of_a_job(racks, hosts, expected, order):
    assert of_hosts(racks, hosts.split()) == settings(expected, order)


def test_the_plan_has_domains(tmp_path):
    nest = (("h1.a.org", "h2.a.org"), ("h2.b.org",))
    path = write(tmp_path, nest, zip(nest, ("r1", "r2"), strict=True))
    assert of_hosts(path, ["h1", "h2.b.org"])["racks"] == "r1,r2"
    with pytest.raises(ValueError, match=r"does not know the hosts h2, h1\.c\.org of this job"):
        of_hosts(path, ["h2", "h1", "h1.c.org"])


def test_groups_of_racks(tmp_path):
    inner = [rack for aisle in AISLES for rack in aisle]
    names = dict(zip((*inner, *AISLES), ("r1", "r2", "r3", "r4", "a1", "a2"), strict=True))
    path = write(tmp_path, AISLES, names)
    assert of_hosts(path, ["h1", "h2", "h3", "h5"])["racks"] == "a1/r1,a1/r2,a2/r3,a2/r4"


def test_no_groups(tmp_path):
    path = write(tmp_path, ("h1", "h2"), {})
    assert of_hosts(path, ["h2", "h1"]) == settings("", "1,0")


def test_algorithms(tmp_path):
    rules = (0, ("direct", "whole")), (70_000, ("ring", "halving"))
    path = write(tmp_path, RACKS, zip(RACKS, ("r1", "r2"), strict=True), rules)
    assert of_hosts(path, ["h1", "h2"])["algorithm"] == "direct/whole,70000:ring/halving"


def test_an_unknown_host(racks):
    with pytest.raises(ValueError) as caught:
        of_hosts(racks, ["h1", "h9", "h8"], "EASYDDL_PLAN")
    text = str(caught.value)
    assert text.startswith(f"`EASYDDL_PLAN`: {racks} does not know the hosts h9, h8 of this job.")
    assert "`easyddl plan`" in text and text.endswith("Received: hosts = h1, h3, h2, h4")


@pytest.mark.parametrize("name", ["EASYDDL_RACKS", "EASYDDL_HOST_ORDER"])
def test_only_one_may_say_where_hosts_are(racks, name):
    with pytest.raises(ValueError, match=f"`--plan` and {name} .*both .* Received: .* and '1,0'"):
        of_hosts(racks, ["h1", "h2"], **{name: "1,0"})


def test_two_hosts_of_one_name(tmp_path):
    path = write(tmp_path, ("a", "b"), {})
    with pytest.raises(ValueError, match=r"has one host for the hosts a\.x\.org, a\.y\.org of"):
        of_hosts(path, ["a.x.org", "b", "a.y.org"])


def test_an_address_has_no_domain(tmp_path):
    path = write(tmp_path, ("10", "10.0.0.1"), {})
    with pytest.raises(ValueError, match=r"does not know the hosts 10\.0\.0\.2 of"):
        of_hosts(path, ["10.0.0.1", "10.0.0.2"])
