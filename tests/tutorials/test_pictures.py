"""The pictures of the README are what the scripts in tutorials/site draw."""

import pathlib
import runpy

import pytest

ROOT = pathlib.Path(__file__).parents[2]
TUTORIALS = ROOT / "tutorials"
BADGES = runpy.run_path(str(TUTORIALS / "site" / "draw_badges.py"))
RIVALS = runpy.run_path(str(TUTORIALS / "site" / "draw_rivals.py"))
README = (ROOT / "README.md").read_text()


def test_levels():
    script = runpy.run_path(str(TUTORIALS / "site" / "draw_levels.py"))
    assert (TUTORIALS / "levels.svg").read_text() == "\n".join(script["picture"]()) + "\n"


@pytest.mark.parametrize("name", RIVALS["CHARTS"])
def test_charts_show_the_tables(name):
    chart = RIVALS["CHARTS"][name]
    assert (TUTORIALS / name).read_text() == "\n".join(chart()) + "\n"


@pytest.mark.parametrize(("name", "fact"), BADGES["facts"]().items())
def test_badges(name, fact):
    path = TUTORIALS / "badges" / f"{name}.svg"
    assert path.read_text() == BADGES["badge"](*fact)
    words = " ".join(fact) if name != "license" else ": ".join(fact)
    assert f"![{words}]({path.relative_to(ROOT)})" in README
